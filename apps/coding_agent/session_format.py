"""The lines of a session file (version 3): how they are written and what they must hold."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Container, Mapping
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import PurePath
from typing import Final

import orjson
from pydantic import TypeAdapter, ValidationError

from coding_agent.errors import SessionInvalid
from lemon_ai import Message, ToolResultMessage
from lemon_ai.types import TaggedMessage

VERSION: Final = 3
SESSION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
# Their repr tells the value and nothing else; of other objects only the class is told, because
# what they hold may be a secret.
_TOLD_BY_REPR: Final = (
    bytes,
    bytearray,
    complex,
    date,
    datetime,
    timedelta,
    PurePath,
    set,
    frozenset,
)
MAX_DEPTH: Final = 32


def require_id(session_id: str) -> None:
    """Raise `SessionInvalid` unless this can be the name of a file in the sessions' folder."""
    if SESSION_ID.fullmatch(session_id) is None:
        raise SessionInvalid(session_id, "that is no session id")


def new_entry_id(taken: Container[str]) -> str:
    """Eight hexadecimal digits that no other entry of the session has."""
    # No secret, only another one than those in the file: that is not worth a system call.
    while (entry_id := f"{random.getrandbits(32):08x}") in taken:
        pass
    return entry_id


def header_line(
    session_id: str, timestamp_ms: int, cwd: str, parent_session: str | None = None
) -> bytes:
    """The first line of a file."""
    header: dict[str, object] = {
        "type": "session",
        "version": VERSION,
        "id": session_id,
        "timestamp": timestamp_ms,
        "cwd": cwd,
    }
    if parent_session is not None:
        header["parentSession"] = parent_session
    return orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE)


def entry_line(entry_id: str, parent_id: str | None, timestamp_ms: int, message: Message) -> bytes:
    """The line of one message."""
    parent = "" if parent_id is None else f'"parentId":"{parent_id}",'
    head = f'{{"type":"message","id":"{entry_id}",{parent}"timestamp":{timestamp_ms},"message":'
    return b"%s%s}\n" % (head.encode(), _dump(message))


def fact_line(
    entry_id: str,
    parent_id: str | None,
    timestamp_ms: int,
    entry_type: str,
    facts: Mapping[str, object],
) -> bytes:
    """The line of an entry that is no message; facts that are None are left out."""
    entry: dict[str, object] = {"type": entry_type, "id": entry_id}
    if parent_id is not None:
        entry["parentId"] = parent_id
    entry["timestamp"] = timestamp_ms
    entry |= {name: plain(fact) for name, fact in facts.items() if fact is not None}
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"


def parse_message(value: object) -> Message:
    """A stored message; raises ValueError with what is wrong and where, without its content."""
    try:
        return _messages().validate_python(value)
    except ValidationError as exc:
        problem = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"message {where}: {problem['msg']}".replace(" :", ":")) from exc


def plain(value: object, depth: int = 0) -> object:
    """`value` as JSON can hold it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping() if depth < MAX_DEPTH:
            return {str(key): plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple() if depth < MAX_DEPTH:
            return [plain(item, depth + 1) for item in value]
        case _ if isinstance(value, _TOLD_BY_REPR):
            return repr(value)
        case _:
            return f"<{type(value).__name__}>"


def _dump(message: Message) -> bytes:
    if isinstance(message, ToolResultMessage) and message.details is not None:
        message = message.model_copy(update={"details": plain(message.details)})
    try:
        return message.model_dump_json(exclude_none=True).encode()
    except ValueError:  # half a surrogate pair, which is no text; it is told as a question mark
        text = json.dumps(message.model_dump(exclude_none=True), ensure_ascii=False)
        return text.encode(errors="replace")


@cache
def _messages() -> TypeAdapter[Message]:
    return TypeAdapter(TaggedMessage)  # built at the first use: it takes longer than a run
