"""What is ready for a subscriber, packed into as few frames as the limits allow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from pydantic import BaseModel

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core import events
from lemon_core.bridges import RunSnapshot, StreamItem
from lemon_core.events import Delta, Event
from lemon_core.logs import get_logger
from lemon_core.rpc.run_events import KnownMaps, fill_event
from lemon_core.rpc.snapshots import snapshot_to_message
from lemon_core.rpc.wire_json import InvalidMessage

log = get_logger(__name__)

FRAME_BYTES: Final = 1024 * 1024
"""A frame is sent once its events reach this size, far below the limit of a message."""

_DELTA_BYTES: Final = 500


def pack(
    items: Iterable[tuple[str, StreamItem | None]], max_message_bytes: int
) -> Iterator[pb.RunEventFrame]:
    """Frames for what `Follower.take` gave, in order; None becomes `not_found`."""
    frame, size, known = pb.RunEventFrame(), 0, KnownMaps()
    for run_id, item in items:
        if isinstance(item, Event):
            size += _add(frame, run_id, item, max_message_bytes, known)
            if size < FRAME_BYTES:
                continue
        if frame.events:
            yield frame
            frame, size = pb.RunEventFrame(), 0
        if item is None:
            yield pb.RunEventFrame(not_found=pb.RunNotFound(run_id=run_id))
        elif not isinstance(item, Event):
            yield _snapshot_frame(item, max_message_bytes)
    if frame.events:
        yield frame


def _snapshot_frame(snapshot: RunSnapshot, max_message_bytes: int) -> pb.RunEventFrame:
    try:
        message = snapshot_to_message(snapshot)
    except (InvalidMessage, ValueError, TypeError):
        message = snapshot_to_message(_repaired_snapshot(snapshot))
    if message.ByteSize() > max_message_bytes - FRAME_BYTES:
        for action in message.actions:
            action.ClearField("detail_json")
    if message.ByteSize() > max_message_bytes - FRAME_BYTES:
        # No part of an answer is left out unseen: the subscriber is told that it cannot have it.
        log.warning("rpc.snapshot_too_large", run_id=snapshot.run_id, bytes=message.ByteSize())
        return pb.RunEventFrame(not_found=pb.RunNotFound(run_id=snapshot.run_id))
    return pb.RunEventFrame(snapshot=message)


def _add(
    frame: pb.RunEventFrame, run_id: str, event: Event, max_message_bytes: int, known: KnownMaps
) -> int:
    """Add `event` to `frame`; returns about how many bytes it takes."""
    message = frame.events.add()
    try:
        fill_event(message, run_id, event, known)
    except (InvalidMessage, ValueError, TypeError) as exc:
        # Left out it would be a gap, refused it would end the stream again and again.
        log.warning("rpc.event_repaired", run_id=run_id, type=event.type, error=type(exc).__name__)
        message.Clear()
        fill_event(message, run_id, _repaired(event))
    payload = event.payload
    if isinstance(payload, Delta):
        return _DELTA_BYTES + len(payload.text)
    size = message.ByteSize()
    if size > max_message_bytes - FRAME_BYTES:
        log.warning("rpc.event_shortened", run_id=run_id, type=event.type, bytes=size)
        message.Clear()
        fill_event(message, run_id, _shortened(event))
        size = message.ByteSize()
    return size


def _repaired_snapshot(snapshot: RunSnapshot) -> RunSnapshot:
    """As `_repaired`, for the folded events."""
    actions = tuple(
        replace(action, title=_text(action.title), detail=_map(action.detail))
        for action in snapshot.actions
    )
    return replace(snapshot, accumulated_text=_text(snapshot.accumulated_text), actions=actions)


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()


def _map(value: Mapping[str, object] | None) -> Mapping[str, object] | None:
    plain = None if value is None else _as_json(dict(value))
    return plain if isinstance(plain, dict) else None


def _repaired(event: Event) -> Event:
    """`event` with everything that is not JSON turned into text or null."""
    payload = event.payload
    plain = payload.model_dump() if isinstance(payload, BaseModel) else payload
    return Event(
        event.type, event.ts_ms, events.coerce(event.type, _as_json(plain)), _map(event.meta) or {}
    )


def _shortened(event: Event) -> Event:
    """`event` without its free-form parts, which alone can be that large."""
    match event.payload:
        case events.EngineAction() as progress:
            note: dict[str, object] = {"truncated": True}
            action = progress.action.model_copy(update={"detail": note})
            short: object = progress.model_copy(update={"action": action})
        case events.RunCompleted(completed=completed):
            lean = completed.model_copy(update={"meta": None})
            short = events.RunCompleted(completed=lean, duration_ms=event.payload.duration_ms)
        case events.Completion() as completed:
            short = completed.model_copy(update={"meta": None})
        case _:
            short = {"truncated": True}
    return Event(event.type, event.ts_ms, short, event.meta)


def _as_json(value: object) -> object:
    try:
        text = json.dumps(value, default=repr, skipkeys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return {"unreadable": type(value).__name__}
    parsed: object = json.loads(text.encode(errors="replace"), parse_constant=lambda constant: None)
    return parsed
