"""Converters of run events: the hot path, a few microseconds for a delta.

An event travels in the message of its type when its payload is the registered model and names the
event's own run; everything else travels as a plain event with its JSON and is cast again on
arrival. So conversion is total for JSON payloads, and both directions together are the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core import events
from lemon_core.events import Event
from lemon_core.rpc.fields import refused
from lemon_core.rpc.payload_in import READERS
from lemon_core.rpc.payload_out import FILLERS
from lemon_core.rpc.wire_json import InvalidMessage, dump_json, dump_map, load_json, load_map

_CHAT_STATE: Final[Mapping[str, pb.ChatStateChange]] = {
    "none": pb.CHAT_STATE_CHANGE_NONE,
    "put": pb.CHAT_STATE_CHANGE_PUT,
    "delete": pb.CHAT_STATE_CHANGE_DELETE,
}
_CHAT_STATE_WORDS: Final[Mapping[pb.ChatStateChange, str]] = {
    number: word for word, number in _CHAT_STATE.items()
}

_META: Final = "meta_json"
# Facts of `meta` that have fields of their own, in the order in which they come back.
_SEQ, _ENGINE_SEQ, _CHANGE = "event_seq", "engine_event_seq", "chat_state_change"


class KnownMaps:
    """The JSON of the map that was written last, for the next one with the very same values.

    The events of a run have most of their meta in common.
    """

    def __init__(self) -> None:
        self._last: dict[str, object] = {}
        self._json = b"{}"

    def dump(self, value: dict[str, object], field: str) -> bytes:
        """As `dump_map`; `value` must not be changed any more."""
        if not _is_same(self._last, value):
            self._json = dump_map(value, field)
            self._last = value
        return self._json


def _is_same(one: dict[str, object], other: dict[str, object]) -> bool:
    if len(one) != len(other):
        return False
    pairs = zip(one.items(), other.items(), strict=True)
    # Values by identity: 1 and True are equal, their JSON is not.
    return all(key == name and value is item for (key, value), (name, item) in pairs)


def fill_event(
    message: pb.RunEvent, run_id: str, event: Event, known: KnownMaps | None = None
) -> None:
    """Write `event` into an empty message; raises `InvalidMessage` when it is not JSON.

    `known` is of the events that go out together.
    """
    message.run_id = run_id
    message.ts_ms = event.ts_ms
    rest = _rest_of_meta(message, event)
    message.meta_json = dump_map(rest, _META) if known is None else known.dump(rest, _META)
    fill = FILLERS.get(event.type)
    payload = event.payload
    if fill is not None and fill(message, run_id, payload):
        return
    if event.type == "engine_event":
        message.engine_event.payload_json = dump_json(
            events.payload_map(payload), "engine_event.payload_json"
        )
        return
    plain = message.plain
    plain.type = event.type
    plain.payload_json = dump_json(events.payload_map(payload), f"{event.type}.payload_json")


def event_to_message(run_id: str, event: Event) -> pb.RunEvent:
    """The message of an event; raises `InvalidMessage` when it is not JSON."""
    message = pb.RunEvent()
    fill_event(message, run_id, event)
    return message


def event_from_message(message: pb.RunEvent) -> Event:
    """The event in `message`; raises `InvalidMessage`."""
    meta = load_map(message.meta_json, _META)
    if message.event_seq:
        meta[_SEQ] = message.event_seq
    if message.engine_event_seq:
        meta[_ENGINE_SEQ] = message.engine_event_seq
    kind = message.WhichOneof("payload")
    if kind is None:
        raise InvalidMessage("payload", "is required")
    reader = READERS.get(kind)
    if reader is None:
        return _plain_event(message, meta)
    if kind == "run_completed" and message.run_completed.chat_state_change:
        change = message.run_completed.chat_state_change
        meta[_CHANGE] = _CHAT_STATE_WORDS.get(change, "none")
    try:
        return Event(kind, message.ts_ms, reader(message), meta)
    except ValidationError as exc:
        raise refused(kind, exc) from exc


def _plain_event(message: pb.RunEvent, meta: dict[str, object]) -> Event:
    if message.HasField("engine_event"):
        value = load_json(message.engine_event.payload_json, "engine_event.payload_json")
        return Event("engine_event", message.ts_ms, value, meta)
    plain = message.plain
    value = load_json(plain.payload_json, "plain.payload_json")
    return Event(plain.type, message.ts_ms, events.coerce(plain.type, value), meta)


def _rest_of_meta(message: pb.RunEvent, event: Event) -> dict[str, object]:
    """Meta without the facts that have fields, which are set here."""
    meta = event.meta
    seq, engine_seq = meta.get(_SEQ), meta.get(_ENGINE_SEQ)
    rest = dict(meta)
    if type(seq) is int and seq > 0:
        message.event_seq = seq
        del rest[_SEQ]
    if type(engine_seq) is int and engine_seq > 0:
        message.engine_event_seq = engine_seq
        del rest[_ENGINE_SEQ]
    if event.type == "run_completed" and isinstance(event.payload, events.RunCompleted):
        change = _CHAT_STATE.get(str(meta.get(_CHANGE)))
        if change is not None:
            message.run_completed.chat_state_change = change
            del rest[_CHANGE]
    return rest
