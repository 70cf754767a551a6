"""Who may execute now: the pure state behind the scheduler.

There are `max_slots` slots and one line (`waitq`, first in first out). Workers ask with a request
token; a grant names the token, so that a worker can tell a grant it waits for from a late one.
Each conversation has at most one current worker generation: what an older one asks for is refused,
and its death takes nothing from its successor. No slot or place is taken away because of age.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal

from lemon_core.resume import ConversationKey


@dataclass(frozen=True, slots=True)
class WorkerToken:
    """One instance of a conversation's worker; `nonce` is unique, `generation` rises by one."""

    key: ConversationKey
    generation: int
    nonce: int


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A place in the line."""

    request_token: int
    worker: WorkerToken
    queued_at_ms: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A slot for the worker that asked with `request_token`."""

    slot_id: int
    request_token: int
    worker: WorkerToken
    waited_ms: int


Refusal = Literal["queued", "kept", "superseded"]


class Slots:
    """Slots, line and worker generations. Every method answers at once and changes state whole."""

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self.in_flight: dict[int, Grant] = {}
        self.waitq: OrderedDict[WorkerToken, SlotRequest] = OrderedDict()
        self._current: dict[ConversationKey, WorkerToken] = {}
        self._slot_of: dict[WorkerToken, int] = {}
        self._ids = count(1)

    def new_generation(self, key: ConversationKey) -> WorkerToken:
        """The token of a new worker of `key`; an earlier worker of it is superseded from now on."""
        before = self._current.get(key)
        token = WorkerToken(key, before.generation + 1 if before else 1, next(self._ids))
        self._current[key] = token
        if before is not None:
            # A superseded worker keeps a slot it already holds, but its place in line is void.
            self.waitq.pop(before, None)
        return token

    def is_current(self, worker: WorkerToken) -> bool:
        """True while `worker` is the newest generation of its conversation."""
        return self._current.get(worker.key) == worker

    def request(self, worker: WorkerToken, request_token: int, now_ms: int) -> Grant | Refusal:
        """A slot at once, or a place in line.

        `kept`: the worker already waits or holds a slot, and nothing changed. `superseded`: a newer
        generation exists or the worker has been retired.
        """
        if not self.is_current(worker):
            return "superseded"
        if worker in self.waitq or worker in self._slot_of:
            return "kept"
        if len(self.in_flight) < self.max_slots:
            return self._grant(SlotRequest(request_token, worker, now_ms), now_ms)
        self.waitq[worker] = SlotRequest(request_token, worker, now_ms)
        return "queued"

    def release(self, slot_id: int, now_ms: int) -> list[Grant]:
        """Free a slot and grant on; unknown ids change nothing."""
        held = self.in_flight.pop(slot_id, None)
        if held is None:
            return []
        del self._slot_of[held.worker]
        return self._grant_waiting(now_ms)

    def withdraw(self, worker: WorkerToken) -> None:
        """Give up a place in line."""
        self.waitq.pop(worker, None)

    def retire(self, worker: WorkerToken, now_ms: int) -> list[Grant]:
        """The worker stopped or died: its own slot and place go, those of a successor stay."""
        if self.is_current(worker):
            del self._current[worker.key]
        self.waitq.pop(worker, None)
        slot_id = self._slot_of.get(worker)
        return [] if slot_id is None else self.release(slot_id, now_ms)

    def sweep(self, alive: Callable[[WorkerToken], bool], now_ms: int) -> list[Grant]:
        """Retire every worker that is not `alive` any more; live ones stay whatever their age."""
        known = {*self._current.values(), *self.waitq, *self._slot_of}
        grants: list[Grant] = []
        for worker in known:
            if not alive(worker):
                grants += self.retire(worker, now_ms)
        return grants

    def _grant_waiting(self, now_ms: int) -> list[Grant]:
        grants: list[Grant] = []
        while self.waitq and len(self.in_flight) < self.max_slots:
            _, waiting = self.waitq.popitem(last=False)
            grants.append(self._grant(waiting, now_ms))
        return grants

    def _grant(self, waiting: SlotRequest, now_ms: int) -> Grant:
        grant = Grant(
            slot_id=next(self._ids),
            request_token=waiting.request_token,
            worker=waiting.worker,
            waited_ms=now_ms - waiting.queued_at_ms,
        )
        self.in_flight[grant.slot_id] = grant
        self._slot_of[waiting.worker] = grant.slot_id
        return grant
