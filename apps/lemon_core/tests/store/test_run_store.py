"""Runs: two awaited commits, hooks, sessions, memory bounds (specification lemon_core 8.3)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio
import pytest

from lemon_core.capabilities import Capabilities
from lemon_core.events import Completion
from lemon_core.resume import ChatState, ResumeToken
from lemon_core.store import (
    DELETE,
    ChatStateStore,
    RunRecord,
    RunStore,
    SessionEntry,
    Store,
    StoreCorrupt,
    StoreUnavailable,
)
from lemon_core.store.backend import Write
from lemon_core.store.memory import MemoryBackend
from lemon_core.store.run_history import MAX_SUMMARY_BYTES, TRUNCATED
from lemon_core.store.run_record import RecordBounds
from lemon_core.testing import FakeClock
from lemon_core.tests.store.backends import make_store

pytestmark = pytest.mark.anyio

SESSION = "agent:default:main:sub:s"
DIGEST = b"\x01" * 32
STATE = ChatState("lemon", "sess_1")


def summary(run_id: str, session_key: str = SESSION, answer: str = "hi") -> dict[str, object]:
    """A summary as the gateway makes it."""
    completed = Completion(
        ok=True, answer=answer, resume=ResumeToken(engine="lemon", value="sess_1"), run_id=run_id
    )
    return {
        "completed": completed,
        "session_key": session_key,
        "run_id": run_id,
        "origin": "node",
        "prompt": "say hi",
        "duration_ms": 5,
    }


@pytest.fixture
def runs(store: Store, clock: FakeClock) -> RunStore:
    return RunStore(store, clock)


@pytest.fixture
def chat(store: Store, clock: FakeClock) -> ChatStateStore:
    return ChatStateStore(store, clock)


@pytest.mark.behaviour("lemon_core.45")
async def test_a_run_begins_once(runs: RunStore) -> None:
    assert await runs.begun("run_1") is None
    assert await runs.begin("run_1", DIGEST, session_key=SESSION)
    assert not await runs.begin("run_1", b"other")
    assert await runs.begun("run_1") == DIGEST
    assert runs.live("run_1")


@pytest.mark.behaviour("lemon_core.45")
async def test_begun_without_summary_reads_as_lost_in_another_process(
    runs: RunStore, store: Store, clock: FakeClock
) -> None:
    await runs.begin("run_1", DIGEST, session_key=SESSION)
    store.memory_table("runs").clear()  # what the end of the process does
    later = RunStore(store, clock)
    record = await later.get("run_1")
    assert record is not None
    assert (record.state, record.digest, record.summary) == ("lost", DIGEST, None)
    assert not later.live("run_1")
    assert not await later.begin("run_1", DIGEST)
    assert await later.finalize("run_1", {"completed": {"ok": False, "error": "run_lost"}})
    record = await later.get("run_1")
    assert record is not None
    assert (record.state, record.digest) == ("finished", DIGEST)
    assert await later.get("run_2") is None


async def test_a_finished_run_reads_the_same_from_memory_and_from_history(
    runs: RunStore, clock: FakeClock
) -> None:
    await runs.begin("run_1", DIGEST, session_key=SESSION)
    started = clock.now_ms()
    await clock.advance(7)
    assert await runs.finalize("run_1", summary("run_1"), STATE)
    fresh = await runs.get("run_1")
    runs.drop("run_1")
    stored = await runs.get("run_1")
    for record in (fresh, stored):
        assert record is not None
        assert (record.state, record.started_at_ms) == ("finished", started)
        assert record.finished_at_ms == started + 7
        assert record.summary is not None
        completed = record.summary["completed"]
        assert isinstance(completed, Mapping)
        assert completed["resume"] == {"engine": "lemon", "value": "sess_1"}
    assert fresh is not stored


@pytest.mark.behaviour("lemon_core.26")
async def test_finalize_commits_summary_chat_state_and_session_together(
    runs: RunStore, chat: ChatStateStore, clock: FakeClock
) -> None:
    await runs.begin("run_1", DIGEST, session_key=SESSION)
    await runs.finalize("run_1", summary("run_1"), STATE)
    now = clock.now_ms()
    assert await chat.get(SESSION) == ChatState("lemon", "sess_1", now, now + 86_400_000)
    entry = SessionEntry(SESSION, "default", "node", now, now, 1)
    assert await runs.list_sessions() == [entry]
    await clock.advance(10)
    await runs.finalize("run_2", summary("run_2"))
    assert await chat.get(SESSION) is not None
    await runs.finalize("run_3", summary("run_3"), DELETE)
    assert await chat.get(SESSION) is None
    assert await runs.get_session(SESSION) == SessionEntry(
        SESSION, "default", "node", now, now + 10, 3
    )


class Refusing(MemoryBackend):
    """Takes begin marks, refuses transactions until told otherwise."""

    refusing = True

    async def transaction(self, writes: Sequence[Write]) -> None:
        if self.refusing:
            raise StoreUnavailable("refused")
        await super().transaction(writes)


@pytest.mark.behaviour("lemon_core.26")
async def test_a_refused_finalize_leaves_nothing_and_may_be_repeated(clock: FakeClock) -> None:
    backend = Refusing()
    store = Store(backend)
    await store.open()
    fired: list[object] = []
    runs = RunStore(store, clock, hooks=lambda: (fired.append,))
    chat = ChatStateStore(store, clock)
    await runs.begin("run_1", DIGEST, session_key=SESSION)
    with pytest.raises(StoreUnavailable):
        await runs.finalize("run_1", summary("run_1"), STATE)
    await runs.flush()
    assert (await chat.get(SESSION), await runs.list_sessions(), fired) == (None, [], [])
    assert await runs.history(SESSION) == []
    assert runs.live("run_1")
    backend.refusing = False
    assert await runs.finalize("run_1", summary("run_1"), STATE)
    await runs.flush()
    assert len(fired) == 1
    assert [record.run_id for record in await runs.history(SESSION)] == ["run_1"]


async def test_the_first_summary_stays(runs: RunStore) -> None:
    await runs.begin("run_1", DIGEST)
    assert await runs.finalize("run_1", summary("run_1", answer="first"))
    assert not await runs.finalize("run_1", summary("run_1", answer="second"))
    runs.drop("run_1")
    assert not await runs.finalize("run_1", summary("run_1", answer="third"))
    (record,) = await runs.history(SESSION)
    assert cast(Mapping[str, object], (record.summary or {})["completed"])["answer"] == "first"


async def test_racing_finalizes_have_one_winner_and_count_each_run_once(runs: RunStore) -> None:
    won: list[bool] = []

    async def finish(run_id: str) -> None:
        won.append(await runs.finalize(run_id, summary(run_id)))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(finish, f"run_{number % 10}")
    assert sorted(won) == [False] * 10 + [True] * 10
    session = await runs.get_session(SESSION)
    assert session is not None
    assert session.run_count == 10


@pytest.mark.behaviour("lemon_core.26")
async def test_hooks_fire_once_in_order_and_isolated(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    capabilities, fired = Capabilities(), list[str]()
    runs = RunStore(store, clock, hooks=lambda: capabilities.contributions("finalize_run_hooks"))
    facts: dict[str, object] = {}

    def first(event: dict[str, object]) -> None:
        facts.update(event)
        fired.append("first")

    def broken(_event: object) -> None:
        raise RuntimeError("broken")

    async def slow(_event: object) -> None:
        await anyio.lowlevel.checkpoint()
        fired.append("slow")

    for hook in (first, broken, slow, first):
        capabilities.contribute("finalize_run_hooks", hook)
    await runs.begin("run_1", DIGEST, session_key=SESSION)
    runs.append_event("run_1", "event")
    with caplog.at_level(logging.ERROR, logger="lemon"):
        await runs.finalize("run_1", summary("run_1"))
        assert fired == []  # outside the caller's path
        await runs.flush()
        await runs.flush()
    assert fired == ["first", "slow"]
    assert [record.message for record in caplog.records] == ["runs.finalize_hook_failed"]
    record = facts.pop("record")
    assert isinstance(record, RunRecord)
    assert list(record.events) == ["event"]
    assert facts == {
        "store": runs,
        "run_id": "run_1",
        "summary": record.summary,
        "session_key": SESSION,
        "started_at": clock.now_ms(),
    }


async def test_hooks_run_by_themselves_while_served(store: Store, clock: FakeClock) -> None:
    done = anyio.Event()
    runs = RunStore(store, clock, hooks=lambda: (lambda _event: done.set(),))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.serve_hooks)
            await anyio.lowlevel.checkpoint()
            await runs.finalize("run_1", summary("run_1"))
            await done.wait()
            tasks.cancel_scope.cancel()


@pytest.mark.behaviour("lemon_core.26")
async def test_without_a_session_there_is_no_hook_and_no_session(
    store: Store, clock: FakeClock
) -> None:
    fired: list[object] = []
    runs = RunStore(store, clock, hooks=lambda: (fired.append,))
    await runs.finalize("run_1", summary("run_1", session_key=""), STATE)
    await runs.flush()
    assert (fired, await runs.list_sessions(), await store.list("chat")) == ([], [], [])
    record = await runs.get("run_1")
    assert record is not None
    assert record.state == "finished"


@pytest.mark.behaviour("lemon_core.26")
async def test_history_is_newest_first_and_capped_at_fifty(
    runs: RunStore, clock: FakeClock
) -> None:
    for number in range(55):
        await runs.begin(f"run_{number:02}", DIGEST, session_key=SESSION)
        await runs.finalize(f"run_{number:02}", summary(f"run_{number:02}"))
        await clock.advance(1)
    newest = [record.run_id for record in await runs.history(SESSION)]
    assert newest == [f"run_{number:02}" for number in range(54, 44, -1)]
    await runs.sweep()
    kept = [record.run_id for record in await runs.history(SESSION, limit=100)]
    assert kept == [f"run_{number:02}" for number in range(54, 4, -1)]


@pytest.mark.behaviour("lemon_core.103")
async def test_history_goes_after_seven_days(runs: RunStore, clock: FakeClock) -> None:
    await runs.finalize("run_1", summary("run_1"))
    await runs.begin("mark", DIGEST)
    await clock.advance(7 * 86_400_000)
    await runs.sweep()
    assert len(await runs.history(SESSION)) == 1
    await clock.advance(1)
    await runs.sweep()
    assert await runs.history(SESSION) == []
    assert await runs.begun("mark") == DIGEST  # live here, so it is no leftover


@pytest.mark.behaviour("lemon_core.26")
async def test_an_oversized_summary_is_stored_compact(runs: RunStore) -> None:
    big = "\N{SNOWMAN}" * MAX_SUMMARY_BYTES
    completed = {"ok": False, "answer": big, "error": {"code": "x", "message": big}}
    facts = {**summary("run_1"), "completed": completed, "prompt": big, "events": [big]}
    await runs.finalize("run_1", facts)
    runs.drop("run_1")
    (record,) = await runs.history(SESSION)
    stored = record.summary
    assert stored is not None
    assert "events" not in stored
    completed = cast(dict[str, object], stored["completed"])
    error = cast(dict[str, object], completed["error"])
    for text, limit in (
        (completed["answer"], 16_000),
        (error["message"], 8_000),
        (stored["prompt"], 8_000),
    ):
        assert isinstance(text, str)
        assert text.endswith(TRUNCATED)
        kept = len(text.removesuffix(TRUNCATED).encode())
        assert limit - 3 < kept <= limit
    assert error["code"] == "x"


async def test_a_summary_whose_meta_is_too_large_keeps_the_essentials(runs: RunStore) -> None:
    facts = {**summary("run_1"), "meta": {"blob": "x" * MAX_SUMMARY_BYTES}}
    await runs.finalize("run_1", facts)
    runs.drop("run_1")
    (record,) = await runs.history(SESSION)
    assert record.summary is not None
    assert "meta" not in record.summary
    assert cast(Mapping[str, object], record.summary["completed"])["answer"] == "hi"


@pytest.mark.behaviour("lemon_core.46")
async def test_after_many_runs_memory_is_empty_and_history_answers(
    runs: RunStore, store: Store
) -> None:
    for number in range(200):
        run_id, key = f"run_{number}", f"agent:default:main:sub:{number % 10}"
        await runs.begin(run_id, DIGEST, session_key=key)
        runs.append_event(run_id, "event")
        await runs.finalize(run_id, summary(run_id, key))
        runs.drop(run_id)
    assert await store.list("runs") == []
    record = await runs.get("run_7")
    assert record is not None
    assert (record.state, list(record.events)) == ("finished", [])
    assert len(await runs.history("agent:default:main:sub:7", limit=50)) == 20


async def test_a_live_run_is_not_dropped_and_a_finished_one_goes_after_ten_minutes(
    runs: RunStore, store: Store, clock: FakeClock
) -> None:
    await runs.begin("live", DIGEST)
    await runs.finalize("done", summary("done"))
    runs.drop("live")
    await clock.advance(600_000)
    await runs.sweep()
    assert {key for key, _ in await store.list("runs")} == {"live", "done"}
    await clock.advance(1)
    await runs.sweep()
    assert {key for key, _ in await store.list("runs")} == {"live"}


async def test_events_are_bounded_per_run_and_in_all(store: Store, clock: FakeClock) -> None:
    """Ruling 31: finished runs give up their events first, the oldest before the others."""
    bounds = RecordBounds(max_events=3, max_record_bytes=60, max_total_bytes=100)
    runs = RunStore(store, clock, bounds=bounds)
    for run_id in ("a", "b", "c"):
        await runs.begin(run_id, DIGEST)
    for number in range(4):
        runs.append_event("a", number, size_bytes=10)
    runs.append_event("b", "big", size_bytes=50)
    runs.append_event("b", "bigger", size_bytes=55)
    runs.append_event("unknown", "ignored")
    await runs.finalize("a", summary("a"))
    await runs.finalize("b", summary("b"))
    runs.append_event("b", "too late", size_bytes=1)
    events = {run_id: await events_of(runs, run_id) for run_id in ("a", "b")}
    assert events == {"a": [1, 2, 3], "b": ["bigger"]}
    runs.append_event("c", "live", size_bytes=40)
    events = {run_id: await events_of(runs, run_id) for run_id in ("a", "b", "c")}
    assert events == {"a": [], "b": ["bigger"], "c": ["live"]}
    assert bounds.total_bytes == 95
    for run_id in ("a", "b"):
        runs.drop(run_id)
    assert bounds.total_bytes == 40


async def test_finished_records_have_a_small_bound_and_the_history_answers_for_them(
    store: Store, clock: FakeClock
) -> None:
    runs = RunStore(store, clock, bounds=RecordBounds(max_finished_bytes=100))
    for number in range(4):
        run_id = f"run_{number}"
        await runs.begin(run_id, DIGEST)
        runs.append_event(run_id, "event", size_bytes=60)
        await runs.finalize(run_id, summary(run_id))
    await runs.begin("live", DIGEST)
    runs.append_event("live", "event", size_bytes=500)
    assert set(store.memory_table("runs")) == {"run_3", "live"}
    old = await runs.get("run_0")
    assert old is not None
    assert (old.state, old.digest, list(old.events)) == ("finished", DIGEST, [])
    # What has left memory is as final as before.
    assert not await runs.begin("run_0", DIGEST)
    assert not await runs.finalize("run_0", summary("run_0"))


async def events_of(runs: RunStore, run_id: str) -> list[object]:
    """The events that the run's record holds."""
    record = await runs.get(run_id)
    assert record is not None
    return list(record.events)


async def test_sessions_are_listed_by_last_use_and_filtered(
    runs: RunStore, clock: FakeClock
) -> None:
    keys = ["agent:a:main", "agent:b:main", "agent:a:main:sub:x"]
    for number, key in enumerate(keys):
        await runs.finalize(f"run_{number}", summary(f"run_{number}", key))
        await clock.advance(1)
    await runs.finalize("run_9", summary("run_9", keys[0]))
    listed = [session.session_key for session in await runs.list_sessions()]
    assert listed == [keys[0], keys[2], keys[1]]
    assert [s.session_key for s in await runs.list_sessions(agent_id="a", limit=1)] == [keys[0]]


async def test_a_deleted_session_leaves_nothing(
    runs: RunStore, chat: ChatStateStore, store: Store
) -> None:
    other = "agent:other:main"
    await runs.finalize("run_1", summary("run_1"), STATE)
    await runs.finalize("run_2", summary("run_2", other), STATE)
    await runs.delete_session(SESSION)
    assert (await runs.get_session(SESSION), await chat.get(SESSION)) == (None, None)
    assert (await runs.history(SESSION), await runs.get("run_1")) == ([], None)
    assert len(await runs.history(other)) == 1
    await runs.delete_session(SESSION)


async def test_a_lookup_that_fails_is_never_absence(tmp_path: Path, clock: FakeClock) -> None:
    """A run that cannot be looked up must not be started again."""
    store = make_store("sqlite", tmp_path, clock)
    await store.open()
    await store.close()
    runs = RunStore(store, clock)
    for lookup in (runs.get("run_1"), runs.begun("run_1"), runs.history(SESSION)):
        with pytest.raises(StoreUnavailable):
            await lookup


async def test_damaged_rows_are_corrupt(runs: RunStore, store: Store) -> None:
    await store.put("sessions_index", SESSION, {"session_key": SESSION})
    with pytest.raises(StoreCorrupt):
        await runs.list_sessions()
    await store.put("sessions_index", SESSION, "text")
    with pytest.raises(StoreCorrupt):
        await runs.get_session(SESSION)
