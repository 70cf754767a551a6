"""Streams as the services document them, decoded: what stands beside each in `wire/<api>/`.

A recording is the body of an answer as it is. Bedrock's frames are binary: there a line is the kind
of an event and its document, with `!` before the kind of an exception.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lemon_ai.errors import error_info
from lemon_ai.testing.wires import WIRES, bedrock
from lemon_ai.tests.adapters.cases import CASES
from lemon_ai.tests.support import final_message
from lemon_ai.types import AssistantMessage

FOLDER = Path(__file__).with_name("wire")
RECORDINGS = sorted(FOLDER.glob("*/*.txt"))
COUNTS = ("input", "output", "cache_read", "cache_write")


def body_of(recording: Path) -> bytes:
    """The bytes as they came."""
    raw = recording.read_bytes()
    if WIRES[recording.parent.name].is_sse:
        return raw
    frames = [line.split(" ", 1) for line in raw.decode().splitlines()]
    return b"".join(_frame(kind, payload.encode()) for kind, payload in frames)


def _frame(kind: str, payload: bytes) -> bytes:
    message = "exception" if kind.startswith("!") else "event"
    headers = {
        f":{message}-type": kind.removeprefix("!"),
        ":content-type": "application/json",
        ":message-type": message,
    }
    return bedrock.frame(headers, payload)


def told(message: AssistantMessage) -> dict[str, Any]:
    """What a message says, in the form of the files."""
    usage = message.usage
    found: dict[str, Any] = {
        "stop_reason": message.stop_reason,
        "content": [block.model_dump(mode="json", exclude_none=True) for block in message.content],
        "usage": None if usage is None else {name: getattr(usage, name) for name in COUNTS},
    }
    if message.stop_reason == "error":
        error = error_info(message)
        found["error"] = {"category": error.category, "code": error.code}
    return found


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    "recording", RECORDINGS, ids=[f"{path.parent.name}-{path.stem}" for path in RECORDINGS]
)
def test_a_recorded_stream(recording: Path, size: int) -> None:
    """Specification lemon_ai 16."""
    (case,) = [case for case in CASES if case.api == recording.parent.name]
    body = body_of(recording)
    events, _ = case.parse(body[start : start + size] for start in range(0, len(body), size))
    assert told(final_message(events)) == json.loads(recording.with_suffix(".json").read_text())


def test_every_wire_api_has_recordings() -> None:
    assert {path.parent.name for path in RECORDINGS} == set(WIRES)
