"""What the tests against vendors' SDKs share. It imports no SDK itself: they are slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from pydantic import TypeAdapter

from lemon_ai.sse import SSEDecoder
from lemon_ai.testing import FakeToolCall, FakeUsage, Turn
from lemon_ai.testing.wires import WIRES

FULL = Turn(
    thinking=["The user ", "wants 日本."],
    thinking_signature="c2lnbmF0dXJl",
    text=["Hällo ", "wörld 🍋"],
    tool_calls=[
        FakeToolCall("ls", {"path": "a.py"}, id="call_a", pieces=4),
        FakeToolCall("ls", {"path": "b"}, id="call_b", pieces=3),
    ],
    usage=FakeUsage(input=60, output=20, cache_read=40, cache_write=7, reasoning=5),
    crlf=True,
    pings=True,
)


def documents(api: str, turn: Turn) -> Iterator[dict[str, Any]]:
    """The JSON of each event that the fake sends for this turn."""
    for event in SSEDecoder().feed(WIRES[api].render(turn, "fake-model").whole()):
        if event.data != b"[DONE]":
            yield orjson.loads(event.data)


def in_vendors_form(vendor_type: Any, document: object) -> object:
    """The document as the vendor's own type describes it: what that does not know is gone.

    Raises ValidationError where it does not fit.
    """
    adapter = TypeAdapter(vendor_type)  # held: lists are validated while they are walked
    return _walked(adapter.validate_python(document))


def _walked(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _walked(item) for key, item in value.items()}
    if isinstance(value, str | bytes | int | float | bool) or value is None:
        return value
    return [_walked(item) for item in value]  # type: ignore[attr-defined]
