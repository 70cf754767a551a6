"""What happened, kept for seven days for whoever asks: recorded at once, written a moment later.

`record` is called where runs live, so it waits for nothing: it redacts, stamps and queues. One task
writes what has queued as one transaction, so that a busy runtime pays a few commits per second and
the two commits of a run wait for none of them. A crash loses what was not written yet: these
records explain, nothing is decided by them.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Final, Literal, get_args

import anyio
import anyio.lowlevel

from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.ids import expired
from lemon_core.logs import get_logger
from lemon_core.store.codec import Key, decode_key
from lemon_core.store.core import DeleteKey, PutValue, Store
from lemon_core.store.errors import StoreCorrupt
from lemon_core.store.rows import parse_row
from lemon_core.util import truncate_utf8
from lemon_core.write_behind import WriteBehind

INTROSPECTION_LOG: Final = "introspection_log"
RETENTION_MS: Final = 7 * 86_400_000
MAX_LIMIT: Final = 1_000
MAX_QUEUED: Final = 10_000
MAX_DEPTH: Final = 100
STRING_MAX_BYTES: Final = 4_096
PREVIEW_MAX_BYTES: Final = 256
REDACTED: Final = "[redacted]"
BATCH: Final = 100
"""Rows per commit and per turn of the loop: more at once would hold it up."""

Provenance = Literal["direct", "inferred", "unavailable"]

_IDS: Final = ("run_id", "session_key", "agent_id", "parent_run_id", "engine")
_PROVENANCES: Final = frozenset(get_args(Provenance))
_REMOVED: Final = frozenset(
    {"api_key", "apikey", "authorization", "password", "private_key", "prompt", "response"}
    | {"secret", "secrets", "stderr", "stdout", "token"}
)
_ARGUMENTS: Final = frozenset({"arguments", "input", "tool_arguments"})
_PREVIEWS: Final = frozenset({"preview", "result_preview"})

log = get_logger("lemon_core.introspection")


class InvalidRecord(LemonError):
    """A record that cannot be kept as it was handed in; a mistake of the caller."""

    code = "invalid_introspection_record"


@dataclass(frozen=True, slots=True)
class IntrospectionRecord:
    """One thing that happened; the payload is redacted."""

    event_id: str
    ts_ms: int
    event_type: str
    payload: dict[str, object]
    run_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    parent_run_id: str | None = None
    engine: str | None = None
    provenance: Provenance = "direct"


class Introspection:
    """The records of one runtime; `serve` writes them. Disabled, it records nothing."""

    def __init__(
        self, store: Store, clock: Clock, *, enabled: bool = True, max_queued: int = MAX_QUEUED
    ) -> None:
        self.enabled, self._max_queued = enabled, max_queued
        self._store, self._clock = store, clock
        self._queue: deque[PutValue] = deque()
        self._behind = WriteBehind(self._write, clock, event="introspection.not_written")
        self._dropped = 0
        # One draw for all ids: a system call for each would cost more than the rest of a record.
        self._id_prefix, self._id_number = os.urandom(10).hex(), count()

    def record(
        self,
        event_type: str,
        payload: Mapping[str, object],
        *,
        run_id: str | None = None,
        session_key: str | None = None,
        agent_id: str | None = None,
        parent_run_id: str | None = None,
        engine: str | None = None,
        provenance: Provenance = "direct",
        keep_arguments: bool = False,
    ) -> str | None:
        """Queue a record and return its id; None when disabled, or when the queue is full.

        Raises `InvalidRecord` for an empty event type, an id that is no text, an unknown provenance
        and a payload that is not made of JSON types. `keep_arguments` keeps what a tool was given.
        """
        if not self.enabled:
            return None
        _check(event_type, payload, provenance)
        if len(self._queue) >= self._max_queued:
            self._dropped += 1
            return None
        event_id = f"evt_{self._id_prefix}{next(self._id_number):012x}"
        ts_ms = self._clock.now_ms()
        # A plain map of what is set, and not the dataclass: this is paid several times per run.
        entry: dict[str, object] = {"event_id": event_id, "ts_ms": ts_ms, "event_type": event_type}
        entry["payload"] = redact(payload, keep_arguments=keep_arguments) if payload else {}
        ids = (run_id, session_key, agent_id, parent_run_id, engine)
        for name, value in zip(_IDS, ids, strict=True):
            if value is None:
                continue
            if not isinstance(value, str):
                raise InvalidRecord(f"the {name} of {event_type} is text: {value!r:.80}")
            entry[name] = value
        entry["provenance"] = provenance
        self._queue.append(PutValue(INTROSPECTION_LOG, (ts_ms, event_id), entry))
        self._behind.wake()
        return event_id

    async def query(
        self,
        *,
        run_id: str | None = None,
        session_key: str | None = None,
        agent_id: str | None = None,
        event_type: str | Collection[str] | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: int = 100,
    ) -> list[IntrospectionRecord]:
        """The records that fit every given filter, newest first; both times are inclusive.

        `limit` is clamped to 1–1000. What is still queued is written first; raises `StoreError`.
        """
        await self.flush()
        types = {event_type} if isinstance(event_type, str) else event_type
        wanted = {"run_id": run_id, "session_key": session_key, "agent_id": agent_id}
        fits = _Filter({k: v for k, v in wanted.items() if v is not None}, types)
        found: list[IntrospectionRecord] = []
        count = max(1, min(limit, MAX_LIMIT))
        for number, (ts_ms, _, value) in enumerate(sorted(await self._scan(), reverse=True)):
            if number % BATCH == 0:
                await anyio.lowlevel.checkpoint()
            if not _within(ts_ms, since_ms, until_ms):
                continue
            if fits(entry := _parsed(self._store.codec.decode(value))):
                found.append(entry)
            if len(found) == count:
                break
        return found

    async def serve(self) -> None:
        """Write what is recorded, until cancelled; call `close` afterwards."""
        await self._behind.serve()

    async def close(self) -> None:
        """Write what is left; a failure is logged."""
        await self._behind.close()

    async def flush(self) -> None:
        """Return when everything recorded before is written; raises `StoreError`."""
        await self._behind.flush()

    async def _write(self) -> None:
        while self._queue:
            batch = list(islice(self._queue, BATCH))
            await self._store.transaction(batch)
            # Only what is written leaves the queue; writing it twice would change nothing.
            for _ in batch:
                self._queue.popleft()
        dropped, self._dropped = self._dropped, 0
        if dropped:
            log.warning("introspection.dropped", count=dropped)

    async def sweep(self) -> int:
        """Remove records older than seven days; the number that went."""
        now = self._clock.now_ms()
        old = [
            DeleteKey(INTROSPECTION_LOG, decode_key(key))
            for ts_ms, key, _ in await self._scan()
            if expired(ts_ms, RETENTION_MS, now=now)
        ]
        for start in range(0, len(old), BATCH):
            await self._store.transaction(old[start : start + BATCH])
        return len(old)

    async def _scan(self) -> list[tuple[int, bytes, bytes]]:
        """Time, stored key and stored value of every record.

        A week's records are many, so most are never decoded, and the loop gets its turns.
        """
        rows = await self._store.backend.list(INTROSPECTION_LOG)
        found: list[tuple[int, bytes, bytes]] = []
        for start in range(0, len(rows), BATCH):
            await anyio.lowlevel.checkpoint()
            part = rows[start : start + BATCH]
            found += [(_ts_ms(decode_key(key)), key, value) for key, value in part]
        return found


def redact(payload: Mapping[str, object], *, keep_arguments: bool = False) -> dict[str, object]:
    """A copy of `payload` without secrets and long text, at any depth.

    Raises `InvalidRecord` for what is not JSON, and for nesting past 100 levels.
    """
    return _Redaction(keep_arguments).fields(payload, 0)


@dataclass(frozen=True, slots=True)
class _Redaction:
    keep_arguments: bool

    def fields(self, fields: Mapping[str, object], depth: int) -> dict[str, object]:
        kept: dict[str, object] = {}
        for name, value in fields.items():
            # The type says so, but callers hand in what they decoded.
            if not isinstance(name, str):
                raise InvalidRecord(f"a payload key is text, not {type(name).__name__}")
            lowered = name.lower()
            if lowered in _REMOVED:
                continue
            if lowered in _ARGUMENTS and not self.keep_arguments:
                kept[name] = REDACTED
            elif lowered in _PREVIEWS and isinstance(value, str):
                kept[name] = _cut(value, PREVIEW_MAX_BYTES)
            else:
                kept[name] = self.value(value, depth + 1)
        return kept

    def value(self, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, str):
            return _cut(value, STRING_MAX_BYTES)
        if isinstance(value, float) and math.isfinite(value):
            return value
        if depth > MAX_DEPTH:
            raise InvalidRecord(f"a payload is nested at most {MAX_DEPTH} levels deep")
        if isinstance(value, Mapping):
            return self.fields(value, depth)
        if isinstance(value, list | tuple):
            return [self.value(item, depth + 1) for item in value]
        raise InvalidRecord(f"a payload holds JSON values, not {value!r:.80}")


def _cut(text: str, max_bytes: int) -> str:
    if len(text) * 4 <= max_bytes:
        return text
    # Half a surrogate pair cannot be measured in UTF-8.
    return truncate_utf8(text.encode(errors="replace").decode(), max_bytes)


def _check(event_type: object, payload: object, provenance: object) -> None:
    if not isinstance(event_type, str) or not event_type:
        raise InvalidRecord(f"an event type is text: {event_type!r:.80}")
    if not isinstance(payload, Mapping):
        raise InvalidRecord(f"the payload of {event_type} is a map, not {type(payload).__name__}")
    if provenance not in _PROVENANCES:
        raise InvalidRecord(f"the provenance of {event_type} is unknown: {provenance!r:.80}")


@dataclass(frozen=True, slots=True)
class _Filter:
    ids: Mapping[str, str]
    types: Collection[str] | None

    def __call__(self, entry: IntrospectionRecord) -> bool:
        return (self.types is None or entry.event_type in self.types) and all(
            getattr(entry, name) == value for name, value in self.ids.items()
        )


def _within(ts_ms: int, since_ms: int | None, until_ms: int | None) -> bool:
    return (since_ms is None or ts_ms >= since_ms) and (until_ms is None or ts_ms <= until_ms)


def _parsed(value: object) -> IntrospectionRecord:
    return parse_row(IntrospectionRecord, value, "an introspection record")


def _ts_ms(key: Key) -> int:
    ts_ms = key[0] if isinstance(key, tuple) else None
    if not isinstance(ts_ms, int):
        raise StoreCorrupt(f"an introspection record has a damaged key: {key!r:.80}")
    return ts_ms
