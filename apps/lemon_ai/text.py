"""Small text and JSON helpers: partial arguments, lone surrogates, shortening."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic_core import from_json

MARKER_BYTES: Final = 256
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_arguments(raw: str) -> tuple[dict[str, Any], str | None]:
    """The whole argument object of a tool call and None, or `({}, problem)`.

    No text at all is a call without arguments. Anything but one whole JSON object is a problem:
    such a call must not be executed.
    """
    if not raw.strip():
        return {}, None
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        return {}, f"the arguments are not valid JSON: {exc.msg} at character {exc.pos}"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return {}, f"the arguments are a JSON {type(value).__name__}, not an object"
    return value, None


def parse_partial_object(raw: str) -> dict[str, Any]:
    """What can be read of a JSON object that is still arriving; `{}` when nothing can."""
    if not raw.strip():
        return {}
    try:
        value = from_json(raw, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def parse_object(raw: str | None) -> dict[str, Any]:
    """The JSON object in this text, such as a stored signature; `{}` when it is none."""
    try:
        value = orjson.loads(raw or "")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def replace_lone_surrogates(text: str) -> str:
    """The text with each surrogate that has no partner replaced by U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def truncate_bytes_utf8(text: str, limit_bytes: int) -> str:
    """The longest beginning of the text that takes at most `limit_bytes` in UTF-8."""
    if len(text) <= limit_bytes // 4:
        return text
    raw = replace_lone_surrogates(text).encode()
    return text if len(raw) <= limit_bytes else raw[:limit_bytes].decode("utf-8", "ignore")


def truncate_chars(text: str, limit: int) -> str:
    """The first `limit` characters; what is left out is shown as an ellipsis within the limit."""
    if len(text) <= limit:
        return text
    return text[: max(limit - 1, 0)] + "…" if limit > 0 else ""


def truncate_middle_utf8(text: str, limit_bytes: int) -> str:
    """Beginning and end of a text, at most `limit_bytes` in UTF-8, with a note in between.

    256 bytes are kept for the note; of the rest 70 % go to the beginning. A limit that leaves
    nothing beside the note gives the beginning alone.
    """
    raw = replace_lone_surrogates(text).encode()
    if len(raw) <= limit_bytes:
        return text
    room = limit_bytes - MARKER_BYTES
    if room <= 0:
        return truncate_bytes_utf8(text, limit_bytes)
    head = raw[: room * 7 // 10].decode("utf-8", "ignore")
    tail = raw[len(raw) - (room - room * 7 // 10) :].decode("utf-8", "ignore")
    removed = len(raw) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {removed} of {len(raw)} bytes left out …]\n{tail}"


@dataclass(frozen=True, slots=True)
class TailInfo:
    """What there was, and what was kept of it."""

    total_lines: int
    total_bytes: int
    output_lines: int
    output_bytes: int

    @property
    def is_truncated(self) -> bool:
        """Whether something is missing."""
        return self.output_bytes < self.total_bytes


def truncate_tail(
    text: str, max_bytes: int = 50_000, max_lines: int = 2_000
) -> tuple[str, TailInfo]:
    """The end of a text: whole lines, at most so many and so many bytes; of a last line that is
    longer than that its end."""
    raw = replace_lone_surrogates(text).encode()
    lines = raw.splitlines(keepends=True)
    kept: list[bytes] = []
    size = 0
    for line in reversed(lines[-max_lines:] if max_lines > 0 else []):
        if size + len(line) > max_bytes:
            break
        kept.append(line)
        size += len(line)
    if not kept and lines and max_bytes > 0 and max_lines > 0:
        kept = [lines[-1][-max_bytes:].decode("utf-8", "ignore").encode()]
    output = b"".join(reversed(kept))
    return output.decode(), TailInfo(len(lines), len(raw), len(kept), len(output))


def dump_json(value: object) -> bytes:
    """JSON bytes in the given key order; lone surrogates become U+FFFD instead of an error."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_clean(value))


def load_json(raw: bytes | str) -> Any:
    """Parse JSON from a wire; accepts lone surrogate escapes, which the fast parser refuses."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw)


def _clean(value: object) -> object:
    match value:
        case str():
            return replace_lone_surrogates(value)
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
        case _:
            return value
