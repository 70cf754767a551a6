"""The messages of a Twilio media stream, in both directions.

What comes in is JSON text; whatever it is, the answer is a frame or None, never an exception: a
message that cannot be read must not end a call. Source: Twilio's "Media Streams - WebSocket
messages".
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_NAME: Final = 256


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The stream begins; ids that are not there are empty. `parameters` are those of the TwiML."""

    stream_sid: str
    call_sid: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InboundAudio:
    """What the caller's side sounds like: mu-law, 20 ms as a rule."""

    sound: bytes


@dataclass(frozen=True, slots=True)
class MarkReached:
    """Everything before the mark has been played, or was dropped by a `clear`."""

    name: str


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The call is over."""


Frame = StreamStart | InboundAudio | MarkReached | StreamStop


def parse_frame(text: str) -> Frame | None:
    """The frame in `text`; None for what means nothing here (`connected`, `dtmf`, the outbound
    track, unknown events) and for what cannot be read."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    match message.get("event"):
        case "media":
            return _audio(_mapping(message, "media"))
        case "start":
            return _start(message)
        case "mark":
            return MarkReached(_text(_mapping(message, "mark"), "name"))
        case "stop":
            return StreamStop()
        case _:
            return None


def media_message(stream_sid: str, sound: bytes) -> str:
    """Sound for the caller."""
    payload = base64.b64encode(sound).decode("ascii")
    return json.dumps({"event": "media", "streamSid": stream_sid, "media": {"payload": payload}})


def mark_message(stream_sid: str, name: str) -> str:
    """Asks to be told when everything before it has been played."""
    return json.dumps({"event": "mark", "streamSid": stream_sid, "mark": {"name": name}})


def clear_message(stream_sid: str) -> str:
    """Drops what has not been played yet."""
    return json.dumps({"event": "clear", "streamSid": stream_sid})


def _audio(media: Mapping[str, object]) -> InboundAudio | None:
    if media.get("track", "inbound") != "inbound":
        return None
    payload = media.get("payload")
    if not isinstance(payload, str):
        return None
    try:
        sound = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        return None
    return InboundAudio(sound) if sound else None


def _start(message: Mapping[str, object]) -> StreamStart:
    start = _mapping(message, "start")
    parameters = _mapping(start, "customParameters")
    return StreamStart(
        stream_sid=_text(start, "streamSid") or _text(message, "streamSid"),
        call_sid=_text(start, "callSid"),
        parameters={name: _text(parameters, name) for name in parameters},
    )


def _mapping(owner: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = owner.get(name)
    return value if isinstance(value, dict) else {}


def _text(owner: Mapping[str, object], name: str) -> str:
    value = owner.get(name)
    return value[:MAX_NAME] if isinstance(value, str) else ""
