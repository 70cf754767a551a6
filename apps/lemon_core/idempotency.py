"""Doing a thing once: remembered results, leased reservations, and a quick memory of what was seen.

A *result* answers repeats of a call for 24 hours. A *reservation* is for work that outlives a
crash: it fixes the run id before anything is submitted, and its lease says who may write. Time
never takes a lease away by itself; a second caller that finds it expired does, by compare-and-swap,
and takes the work over under the same run id. From then on the first owner's token opens nothing
any more.

No method hides a failing store: `StoreError` passes through, because "not there" and "nobody knows"
would otherwise look alike, and a caller could do the thing twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Literal

from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.ids import expired, new_uuid
from lemon_core.store.core import ABSENT, Absent, Store
from lemon_core.store.keyed_lock import KeyedLock
from lemon_core.store.rows import parse_row

IDEMPOTENCY: Final = "idempotency"
RESULT_TTL_MS: Final = 86_400_000
RETENTION_MS: Final = 2 * 86_400_000

ReservationState = Literal["pending", "submitted", "completed", "outcome_unknown"]
Receipt = Mapping[str, object]

NEXT: Final[Mapping[ReservationState, frozenset[ReservationState]]] = {
    "pending": frozenset({"submitted", "completed", "outcome_unknown"}),
    "submitted": frozenset({"completed", "outcome_unknown"}),
    "completed": frozenset(),
    "outcome_unknown": frozenset(),
}


class LeaseLost(LemonError):
    """Somebody else owns the reservation now, or it is gone; nothing was written."""

    code = "lease_lost"

    def __init__(self, lease: Reserved) -> None:
        super().__init__(
            f"the lease on {lease.scope}:{lease.key} (run {lease.run_id}) is lost: "
            "answer from what is stored now"
        )
        self.scope, self.key, self.run_id = lease.scope, lease.key, lease.run_id


@dataclass(frozen=True, slots=True)
class Reserved:
    """The caller owns the work and submits it as `run_id`.

    After a takeover `run_id` and `receipt` are those of the owner before.
    """

    scope: str
    key: str
    run_id: str
    token: str
    lease_expires_at_ms: int
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """Somebody else is at it, and their lease lives."""

    run_id: str
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The work was accepted as `run_id`; its answer is not known yet."""

    run_id: str
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class Completed:
    """The work is done; `receipt` is what its owner left for repeats."""

    run_id: str
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """Nobody can tell whether the work was taken; it is never submitted again."""

    run_id: str
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """An old record without a run id: it may have been submitted, so it never is again."""


Reservation = Reserved | Pending | Submitted | Completed | OutcomeUnknown | Ambiguous


@dataclass(frozen=True, slots=True)
class _Result:
    result: object
    inserted_at_ms: int


@dataclass(frozen=True, slots=True)
class _Lease:
    """A stored reservation; all but `state` may be missing in old records."""

    state: ReservationState
    run_id: str | None = None
    lease_owner: str | None = None
    lease_expires_at_ms: int = 0
    receipt: dict[str, object] | None = None
    created_at_ms: int = 0
    updated_at_ms: int = 0


class Idempotency:
    """Records by scope and key. A scope holds either results or reservations."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._executing = KeyedLock()

    # --- results ---

    async def get(self, scope: str, key: str, default: object = None) -> object:
        """The result stored under the key in the last 24 hours, or `default`."""
        found = self._fresh(scope, key, await self._load(scope, key))
        return default if found is None else found.result

    async def put(self, scope: str, key: str, result: object) -> None:
        """Store `result`, whatever was there."""
        await self._store.put(IDEMPOTENCY, _row(scope, key), self._stamped(result))

    async def put_new(self, scope: str, key: str, result: object) -> bool:
        """Store `result` unless there is one; of any concurrent callers one gets True."""
        while True:
            value = await self._load(scope, key)
            if self._fresh(scope, key, value) is not None:
                return False
            if await self._swap(scope, key, value, self._stamped(result)):
                return True

    async def delete(self, scope: str, key: str) -> None:
        """Forget the key; absent is fine."""
        await self._store.delete(IDEMPOTENCY, _row(scope, key))

    async def execute(self, scope: str, key: str, fn: Callable[[], Awaitable[object]]) -> object:
        """The stored result, or what `fn` returns: it runs once, also under concurrency here.

        When `fn` raises, nothing is stored and the next caller runs it. When its result cannot be
        stored, that is raised, and a repeat runs `fn` again.
        """
        # Held while `fn` runs, on purpose: the other callers of this key wait for its result.
        async with self._executing.hold(_row(scope, key)):
            found = self._fresh(scope, key, await self._load(scope, key))
            if found is not None:
                return found.result
            result = await fn()
            await self.put(scope, key, result)
            return result

    # --- reservations ---

    async def reserve(
        self, scope: str, key: str, run_id: str, lease_ms: int, receipt: Receipt | None = None
    ) -> Reservation:
        """Take the work, or learn how far it has got. `receipt` is kept with a new record.

        A pending record whose lease has run out is taken over, with the run id it has.
        """
        if not run_id or lease_ms <= 0:
            raise ValueError("a reservation needs a run id and a lease of at least 1 ms")
        while True:
            value = await self._load(scope, key)
            now = self._clock.now_ms()
            if value is ABSENT:
                kept = None if receipt is None else dict(receipt)
                lease = _Lease("pending", run_id, receipt=kept, created_at_ms=now)
            else:
                lease = _lease(scope, key, value)
                if (answer := _answer(lease, now)) is not None:
                    return answer
            taken = replace(
                lease,
                lease_owner=new_uuid(),
                lease_expires_at_ms=now + lease_ms,
                updated_at_ms=now,
            )
            # A lost race means that there is a newer record: look at that one.
            if await self._swap(scope, key, value, asdict(taken)):
                return _reserved(scope, key, taken)

    async def look(self, scope: str, key: str) -> Reservation | None:
        """How far the work under the key has got, taking nothing; None when nobody has reserved it.

        A lease that has run out reads as `Pending` too.
        """
        value = await self._load(scope, key)
        if value is ABSENT:
            return None
        lease = _lease(scope, key, value)
        found = _answer(lease, self._clock.now_ms())
        return Pending(lease.run_id or "", lease.receipt) if found is None else found

    async def advance(
        self, reservation: Reserved, state: ReservationState, receipt: Receipt | None = None
    ) -> None:
        """Record how far the work is; without a `receipt` the one that is there stays.

        Returning means that it is stored. Advancing to where the record is already, with the same
        receipt, does nothing, so that a call whose outcome was unknown may be repeated. Raises
        `LeaseLost`, and ValueError for a step that `NEXT` does not have.
        """
        while True:
            value, lease = await self._owned(reservation)
            kept = lease.receipt if receipt is None else dict(receipt)
            if lease.state == state and lease.receipt == kept:
                return
            if state not in NEXT[lease.state]:
                raise ValueError(f"a {lease.state} reservation does not become {state}")
            now = self._clock.now_ms()
            moved = replace(lease, state=state, receipt=kept, updated_at_ms=now)
            if await self._swap(reservation.scope, reservation.key, value, asdict(moved)):
                return

    async def release(self, reservation: Reserved) -> None:
        """Remove the reservation, because the work was definitely not taken: a repeat may try.

        Raises `LeaseLost`, also when it is removed already, and ValueError once it is submitted.
        """
        while True:
            value, lease = await self._owned(reservation)
            if lease.state != "pending":
                raise ValueError(f"a {lease.state} reservation is not released")
            if await self._swap(reservation.scope, reservation.key, value, ABSENT):
                return

    async def let_go(self, reservation: Reserved) -> None:
        """End the lease now: the next caller takes the work over, under the run id that it has.

        For an owner that cannot go on and does not know what the one before it has done. Raises
        `LeaseLost`.
        """
        while True:
            value, lease = await self._owned(reservation)
            now = self._clock.now_ms()
            ended = replace(lease, lease_expires_at_ms=now, updated_at_ms=now)
            if await self._swap(reservation.scope, reservation.key, value, asdict(ended)):
                return

    async def sweep(self) -> int:
        """Remove records older than 48 hours; the number that went.

        What must never be submitted again stays: unknown outcomes, and pending without a run id. So
        does a lease that lives.
        """
        now, gone = self._clock.now_ms(), 0
        for row, value in await self._store.load_all(IDEMPOTENCY):
            if _outlived(value, now):
                # Compare-and-swap: the record may have been written since it was read.
                gone += await self._store.compare_and_swap(IDEMPOTENCY, row, value, ABSENT)
        return gone

    # --- inside ---

    async def _load(self, scope: str, key: str) -> object:
        return await self._store.load(IDEMPOTENCY, _row(scope, key), ABSENT)

    async def _swap(self, scope: str, key: str, old: object, new: object | Absent) -> bool:
        return await self._store.compare_and_swap(IDEMPOTENCY, _row(scope, key), old, new)

    def _fresh(self, scope: str, key: str, value: object) -> _Result | None:
        if value is ABSENT:
            return None
        found = parse_row(_Result, value, f"the result of {scope}:{key}")
        stale = expired(found.inserted_at_ms, RESULT_TTL_MS, now=self._clock.now_ms())
        return None if stale else found

    def _stamped(self, result: object) -> dict[str, object]:
        return {"result": result, "inserted_at_ms": self._clock.now_ms()}

    async def _owned(self, reservation: Reserved) -> tuple[object, _Lease]:
        """The stored record, while the reservation's token owns it; raises `LeaseLost`."""
        value = await self._load(reservation.scope, reservation.key)
        if value is ABSENT:
            raise LeaseLost(reservation)
        lease = _lease(reservation.scope, reservation.key, value)
        if lease.lease_owner != reservation.token:
            raise LeaseLost(reservation)
        return value, lease


def _row(scope: str, key: str) -> str:
    return f"{scope}:{key}"


def _lease(scope: str, key: str, value: object) -> _Lease:
    return parse_row(_Lease, value, f"the reservation {scope}:{key}")


def _reserved(scope: str, key: str, lease: _Lease) -> Reserved:
    return Reserved(
        scope,
        key,
        run_id=lease.run_id or "",
        token=lease.lease_owner or "",
        lease_expires_at_ms=lease.lease_expires_at_ms,
        receipt=lease.receipt,
    )


def _answer(lease: _Lease, now_ms: int) -> Reservation | None:
    """What a record tells a caller; None when its lease may be taken over."""
    run_id, receipt = lease.run_id or "", lease.receipt
    match lease.state:
        case "completed":
            return Completed(run_id, receipt)
        case "outcome_unknown":
            return OutcomeUnknown(run_id, receipt)
        case "submitted":
            return Submitted(run_id, receipt)
        case "pending":
            if not run_id:
                return Ambiguous()
            return Pending(run_id, receipt) if now_ms < lease.lease_expires_at_ms else None


def _outlived(value: object, now_ms: int) -> bool:
    """True for a record that retention lets go; one that cannot be understood stays."""
    if not isinstance(value, Mapping):
        return False
    state = value.get("state")
    if state == "outcome_unknown" or (state == "pending" and not value.get("run_id")):
        return False
    lease_end = value.get("lease_expires_at_ms")
    if state == "pending" and isinstance(lease_end, int) and now_ms < lease_end:
        return False
    written = value.get("updated_at_ms", value.get("inserted_at_ms"))
    return isinstance(written, int) and expired(written, RETENTION_MS, now=now_ms)


@dataclass(slots=True)
class TtlDedupe:
    """What was seen lately, in memory; past `max_size` the oldest is forgotten."""

    ttl_ms: int
    max_size: int
    clock: Clock
    _seen: OrderedDict[Hashable, int] = field(default_factory=OrderedDict)

    def check_and_mark(self, key: Hashable) -> Literal["new", "seen"]:
        """`seen` when `key` was marked at most `ttl_ms` ago; else it is marked now."""
        now = self.clock.monotonic_ms()
        marked = self._seen.get(key)
        if marked is not None and now - marked <= self.ttl_ms:
            return "seen"
        self._seen[key] = now
        self._seen.move_to_end(key)
        self._forget(now)
        return "new"

    def __len__(self) -> int:
        return len(self._seen)

    def _forget(self, now: int) -> None:
        # Marks are in the order of time, so what has to go is in front.
        while self._seen:
            oldest = next(iter(self._seen.values()))
            if len(self._seen) <= self.max_size and now - oldest <= self.ttl_ms:
                return
            self._seen.popitem(last=False)
