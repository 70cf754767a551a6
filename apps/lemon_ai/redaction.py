"""What keeps keys and texts out of traces and dumps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from lemon_ai.text import dump_json, load_json
from lemon_ai.transport import without_userinfo

REDACTED: Final = "[REDACTED]"
_SECRET_HEADERS: Final = frozenset({"api-key", "chatgpt-account-id"})
# How gateways in front of a provider call theirs, for example `cf-aig-authorization`.
_SECRET_ENDINGS: Final = ("authorization", "cookie", "-auth", "-key", "-secret", "-token")
# The values of a request that describe it, and are no text of anybody's.
_PLAIN_KEYS: Final = frozenset(
    {"model", "role", "type", "effort", "service_tier", "mime_type", "media_type", "mode"}
)
# A piece of a text this long is recognised in an answer that repeats it.
_PIECE: Final = 12


def is_secret(header: str) -> bool:
    """Whether the value of a header with this name is a credential."""
    name = header.lower()
    return name in _SECRET_HEADERS or name.endswith(_SECRET_ENDINGS)


def visible_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with every credential replaced."""
    return {name: REDACTED if is_secret(name) else value for name, value in headers.items()}


def secrets_of(headers: Mapping[str, str]) -> list[str]:
    """The values that `visible_headers` replaces, also without their scheme; the longest first."""
    values = [v for name, v in headers.items() if is_secret(name) and v]
    bare = [value.partition(" ")[2] for value in values]
    return sorted({*values, *filter(None, bare)}, key=len, reverse=True)


def visible_url(url: str) -> str:
    """The URL without a name, a password or a query."""
    parts = urlsplit(without_userinfo(url))
    return urlunsplit(parts._replace(query="", fragment=""))


def shape_of(value: object, key: str = "") -> object:
    """A JSON value with each text replaced by its length; numbers and plain words stay."""
    match value:
        case str() if key not in _PLAIN_KEYS:
            return f"<{len(value)} characters>"
        case dict():
            return {name: shape_of(item, str(name)) for name, item in value.items()}
        case list():
            return [shape_of(item, key) for item in value]
        case _:
            return value


def texts_of(body: bytes) -> list[str]:
    """The texts in a request that must not be shown."""
    try:
        return list(_texts(load_json(body), ""))
    except ValueError:
        return []


def _texts(value: object, key: str) -> Iterator[str]:
    match value:
        case str() if key not in _PLAIN_KEYS:
            yield value
        case dict():
            for name, item in value.items():
                yield from _texts(item, str(name))
        case list():
            for item in value:
                yield from _texts(item, key)


def clean_answer(body: bytes, *, texts: Iterable[str], secrets: Iterable[str], limit: int) -> str:
    """The beginning of an error's body without keys, and without what it repeats of the request."""
    with contextlib.suppress(ValueError):
        body = dump_json(load_json(body))  # escapes would hide what is looked for
    answer = body[: 4 * limit].decode("utf-8", "replace")
    for secret in secrets:
        answer = answer.replace(secret, REDACTED)
    return _without(answer, list(texts)).encode()[:limit].decode("utf-8", "ignore")


def _without(answer: str, texts: list[str]) -> str:
    for text in sorted({t for t in texts if 4 <= len(t) < _PIECE}, key=len, reverse=True):
        answer = answer.replace(text, "[TEXT]")
    joined = "\n".join(text for text in texts if len(text) >= _PIECE)
    out: list[str] = []
    hidden_to = 0
    for index in range(len(answer)):
        piece = answer[index : index + _PIECE]
        if len(piece) == _PIECE and piece in joined:
            if index >= hidden_to:
                out.append("[TEXT]")
            hidden_to = index + _PIECE
        if index >= hidden_to:
            out.append(answer[index])
    return "".join(out)
