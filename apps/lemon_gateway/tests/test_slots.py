"""The slot state against its invariants, and the sentences of the specification one by one."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lemon_core.resume import ConversationKey
from lemon_gateway.slots import Grant, Slots, WorkerToken

A: ConversationKey = ("session", "agent:a:main")
B: ConversationKey = ("session", "agent:b:main")
C: ConversationKey = ("resume", "lemon", "sess_1")


def test_a_free_slot_is_granted_at_once() -> None:
    """Specification lemon_gateway 3.2: granted at once when in_flight is below max."""
    slots = Slots(1)
    worker = slots.new_generation(A)
    grant = slots.request(worker, 7, 100)
    assert isinstance(grant, Grant)
    assert (grant.request_token, grant.worker, grant.waited_ms) == (7, worker, 0)


def test_the_line_is_first_in_first_out() -> None:
    """Specification lemon_gateway 3.2: release grants from the head of the line until full."""
    slots = Slots(1)
    first = slots.request(slots.new_generation(A), 1, 0)
    assert isinstance(first, Grant)
    second, third = slots.new_generation(B), slots.new_generation(C)
    assert slots.request(second, 2, 10) == "queued"
    assert slots.request(third, 3, 20) == "queued"
    (next_grant,) = slots.release(first.slot_id, 50)
    assert (next_grant.worker, next_grant.waited_ms) == (second, 40)
    assert list(slots.waitq) == [third]


@pytest.mark.behaviour("lemon_gateway.5")
def test_a_repeated_request_keeps_one_entry_and_its_place() -> None:
    """Specification lemon_gateway 3.2: a repeated request is ignored, queued or granted."""
    slots = Slots(1)
    holder, waiter, last = (slots.new_generation(key) for key in (A, B, C))
    slots.request(holder, 1, 0)
    slots.request(waiter, 2, 0)
    slots.request(last, 3, 0)
    assert slots.request(waiter, 4, 9) == "kept"
    assert slots.request(holder, 5, 9) == "kept"
    assert list(slots.waitq) == [waiter, last]
    assert len(slots.in_flight) == 1


@pytest.mark.behaviour("lemon_gateway.5")
def test_a_superseded_generation_gets_nothing_and_frees_nothing_of_its_successor() -> None:
    """Specification lemon_gateway 3.2: a death notice of an older generation changes nothing."""
    slots = Slots(2)
    old = slots.new_generation(A)
    new = slots.new_generation(A)
    assert (old.generation, new.generation) == (1, 2)
    assert slots.request(old, 1, 0) == "superseded"
    held = slots.request(new, 2, 0)
    assert isinstance(held, Grant)
    assert slots.retire(old, 0) == []
    assert slots.in_flight == {held.slot_id: held}
    assert slots.is_current(new)


def test_a_new_generation_voids_the_place_of_the_old_one() -> None:
    """Specification lemon_gateway 3.2: refused if the generation is superseded."""
    slots = Slots(1)
    slots.request(slots.new_generation(B), 1, 0)
    old = slots.new_generation(A)
    assert slots.request(old, 2, 0) == "queued"
    slots.new_generation(A)
    assert not slots.waitq


@pytest.mark.behaviour("lemon_gateway.6")
@pytest.mark.parametrize("dead_holds", [True, False])
def test_death_frees_exactly_the_own_entries_and_grants_on(dead_holds: bool) -> None:
    """Specification lemon_gateway 3.2: worker death removes its slots and queue entries."""
    slots = Slots(1)
    holder, waiter, last = (slots.new_generation(key) for key in (A, B, C))
    slots.request(holder, 1, 0)
    slots.request(waiter, 2, 0)
    slots.request(last, 3, 0)
    granted = slots.retire(holder if dead_holds else waiter, 5)
    if dead_holds:
        assert [grant.worker for grant in granted] == [waiter]
        assert list(slots.waitq) == [last]
    else:
        assert granted == []
        assert [grant.worker for grant in slots.in_flight.values()] == [holder]
        assert list(slots.waitq) == [last]


def test_releasing_twice_or_an_unknown_slot_changes_nothing() -> None:
    """Specification lemon_gateway 3.2: release_slot is idempotent."""
    slots = Slots(1)
    grant = slots.request(slots.new_generation(A), 1, 0)
    assert isinstance(grant, Grant)
    assert slots.release(grant.slot_id, 0) == []
    assert slots.release(grant.slot_id, 0) == []
    assert slots.release(9_999, 0) == []


def test_the_sweep_takes_dead_workers_and_leaves_old_ones() -> None:
    """Specification lemon_gateway 3.2: live entries are never dropped for age."""
    slots = Slots(1)
    old, dead, waiter = (slots.new_generation(key) for key in (A, B, C))
    slots.request(old, 1, 0)
    slots.request(dead, 2, 0)
    slots.request(waiter, 3, 0)
    assert slots.sweep(lambda token: token != dead, 10**9) == []
    assert list(slots.waitq) == [waiter]
    assert [grant.worker for grant in slots.in_flight.values()] == [old]


def test_nothing_is_remembered_of_conversations_that_are_over() -> None:
    """Specification lemon_gateway 13.39: tables stay where they were."""
    slots = Slots(1)
    for number in range(100):
        worker = slots.new_generation(("session", f"agent:a{number}:main"))
        slots.request(worker, number, 0)
        slots.retire(worker, 0)
    assert (slots.in_flight, slots.waitq) == ({}, {})
    assert slots.sweep(lambda _: False, 0) == []
    assert slots.new_generation(("session", "agent:a1:main")).generation == 1


class SlotsMachine(RuleBasedStateMachine):
    """Any order of calls keeps the invariants of the specification, section 3.2."""

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(2)
        self.tokens = iter(range(1, 10**6))
        self.granted: set[int] = set()
        self.line: list[WorkerToken] = []

    def _note(self, grants: list[Grant]) -> None:
        for grant in grants:
            assert grant.slot_id not in self.granted, "a slot id is never used twice"
            self.granted.add(grant.slot_id)
            # First in, first out: only the longest waiting worker is served.
            assert self.line.pop(0) == grant.worker

    def _leave(self, worker: WorkerToken) -> None:
        if worker in self.line:
            self.line.remove(worker)

    @rule(target=workers, key=st.sampled_from([A, B, C]))
    def start_worker(self, key: ConversationKey) -> WorkerToken:
        for worker in [token for token in self.line if token.key == key]:
            self._leave(worker)
        return self.slots.new_generation(key)

    @rule(worker=workers)
    def request(self, worker: WorkerToken) -> None:
        answer = self.slots.request(worker, next(self.tokens), 0)
        if isinstance(answer, Grant):
            assert not self.line, "nobody overtakes the line"
            self.granted.add(answer.slot_id)
        elif answer == "queued":
            self.line.append(worker)
        elif answer == "superseded":
            assert not self.slots.is_current(worker)

    @rule(worker=workers)
    def release(self, worker: WorkerToken) -> None:
        for slot_id, grant in list(self.slots.in_flight.items()):
            if grant.worker == worker:
                self._note(self.slots.release(slot_id, 0))

    @rule(worker=consumes(workers))
    def retire(self, worker: WorkerToken) -> None:
        self._leave(worker)
        self._note(self.slots.retire(worker, 0))

    @rule(worker=workers)
    def withdraw(self, worker: WorkerToken) -> None:
        self._leave(worker)
        self.slots.withdraw(worker)

    @invariant()
    def never_more_than_max(self) -> None:
        assert len(self.slots.in_flight) <= self.slots.max_slots

    @invariant()
    def a_worker_appears_once(self) -> None:
        everywhere = [grant.worker for grant in self.slots.in_flight.values()]
        everywhere += list(self.slots.waitq)
        assert len(everywhere) == len(set(everywhere))

    @invariant()
    def nobody_waits_while_a_slot_is_free(self) -> None:
        assert not self.slots.waitq or len(self.slots.in_flight) == self.slots.max_slots

    @invariant()
    def the_line_is_as_expected(self) -> None:
        assert list(self.slots.waitq) == self.line

    @invariant()
    def only_current_generations_wait(self) -> None:
        assert all(self.slots.is_current(worker) for worker in self.slots.waitq)


TestSlotsMachine = SlotsMachine.TestCase
TestSlotsMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
