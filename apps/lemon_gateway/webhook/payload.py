"""What a webhook's payload says: prompt, attachments and metadata, wherever senders put them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import orjson

from lemon_agent.external_content import wrap_external_content
from lemon_core.util import canonical_json

MAX_DEPTH: Final = 64
"""A payload that is nested deeper is none that anybody meant."""
MAX_ATTACHMENTS: Final = 1_000
MAX_LOOKED_AT: Final = 10_000
"""How many values may be looked at for them."""

_PROMPTS: Final = ("prompt", "text", "message", "input", "body.text", "content.text")
_ATTACHMENTS: Final = ("attachments", "files", "urls")
_URLS: Final = ("url", "href", "uri")
_NAMES: Final = ("name", "filename", "file_name", "title")
_TYPES: Final = ("content_type", "mime_type", "type")
_SIZES: Final = ("size", "bytes")
_MAX_URL: Final = 4_096
_MAX_NAME: Final = 255

Payload = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something that the message points to; nothing is fetched."""

    url: str
    name: str
    content_type: str | None = None
    size: int | None = None

    def as_dict(self) -> dict[str, object]:
        """As JSON types, without what is not known."""
        facts = {"url": self.url, "name": self.name, "content_type": self.content_type}
        found: dict[str, object] = {key: value for key, value in facts.items() if value is not None}
        return found if self.size is None else {**found, "size": self.size}


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """What a run is made of."""

    prompt: str
    """The sender's words and the list of attachments, as the model gets them: between marks that
    say that nobody here wrote them."""
    attachments: tuple[Attachment, ...]
    metadata: Mapping[str, object]
    digest: str
    """What two requests with one key have to agree in, as SHA-256 in hex."""

    @classmethod
    def of(cls, payload: Payload, integration_id: str) -> WebhookMessage | None:
        """The message in `payload`; None when there is nothing to answer.

        A payload of a megabyte may take a second: nothing of it is put off until later.
        """
        said, attachments = text_at(payload, *_PROMPTS), tuple(_attachments(payload))
        if not said and not attachments:
            return None
        metadata = _metadata(payload)
        parts = {
            "prompt": said,
            "attachments": [attachment.as_dict() for attachment in attachments],
            "metadata": metadata,
        }
        digest = hashlib.sha256(canonical_json(parts)).hexdigest()
        return cls(_framed(_text(said, attachments), integration_id), attachments, metadata, digest)


def _text(said: str, attachments: Sequence[Attachment]) -> str:
    if not attachments:
        return said
    rows = [f"- {attachment.name} ({attachment.url})" for attachment in attachments]
    listed = "\n".join(["Attachments:", *rows])
    return f"{said}\n\n{listed}" if said else listed


def _framed(text: str, integration_id: str) -> str:
    name = " ".join(integration_id.split())
    return (
        f"A message came in through the webhook {name!r}. Read it and respond to it: answer what "
        f"it asks, or say what it reports.\n\n{wrap_external_content(text, 'webhook', sender=name)}"
    )


def parsed_json(body: bytes) -> Payload | None:
    """The object that `body` holds; None when it holds none that can be used."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and not _is_too_deep(value) else None


def at(payload: Payload, path: str) -> object:
    """The value under the dotted `path`, as a key of that name or as keys inside each other."""
    if path in payload:
        return payload[path]
    found: object = payload
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def text_at(payload: Payload, *paths: str) -> str:
    """The first text under `paths` that is not blank, without the space around it."""
    for path in paths:
        value = at(payload, path)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _metadata(payload: Payload) -> Mapping[str, object]:
    value = payload.get("metadata")
    if isinstance(value, str):
        value = parsed_json(value.encode(errors="replace"))
    return value if isinstance(value, Mapping) else {}


def _attachments(payload: Payload) -> list[Attachment]:
    """The first ones of those that there are, each address once."""
    found: dict[str, Attachment] = {}
    looked_at = iter(range(MAX_LOOKED_AT))
    for key in _ATTACHMENTS:
        for attachment in _found_in(payload.get(key), MAX_DEPTH, looked_at):
            found.setdefault(attachment.url, attachment)
            if len(found) == MAX_ATTACHMENTS:
                return list(found.values())
    return list(found.values())


def _found_in(value: object, depth: int, looked_at: Iterator[int]) -> Iterator[Attachment]:
    if depth == 0 or next(looked_at, None) is None:
        return
    if isinstance(value, str):
        yield from _of_text(value, depth, looked_at)
    elif isinstance(value, list):
        for item in value:
            yield from _found_in(item, depth - 1, looked_at)
    elif isinstance(value, Mapping):
        url = _line(text_at(value, *_URLS), _MAX_URL)
        if url:
            yield _of_object(url, value)
        else:
            for item in value.values():
                # Text inside an object that has no address is anything but one.
                if not isinstance(item, str):
                    yield from _found_in(item, depth - 1, looked_at)


def _of_text(text: str, depth: int, looked_at: Iterator[int]) -> Iterator[Attachment]:
    try:
        value = orjson.loads(text.encode(errors="replace"))
    except orjson.JSONDecodeError:
        url = _line(text, _MAX_URL)
        if url:
            yield Attachment(url, _name_of(url))
        return
    if isinstance(value, str | list | dict):
        yield from _found_in(value, depth - 1, looked_at)


def _of_object(url: str, facts: Payload) -> Attachment:
    size = next((n for key in _SIZES if (n := _count(facts.get(key))) is not None), None)
    return Attachment(
        url,
        _line(text_at(facts, *_NAMES), _MAX_NAME) or _name_of(url),
        _line(text_at(facts, *_TYPES), _MAX_NAME) or None,
        size,
    )


def _count(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15:
        value = int(value)
    usable = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if usable and isinstance(value, int) else None


def _name_of(url: str) -> str:
    try:
        last = urlsplit(url).path.rstrip("/").rpartition("/")[2]
    except ValueError:
        last = ""
    return _line(last, _MAX_NAME) or "attachment"


def _line(text: str, limit: int) -> str:
    """`text` as a part of one line."""
    return " ".join(text.split())[:limit]
