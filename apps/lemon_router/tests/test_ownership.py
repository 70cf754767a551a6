"""One session runs in one of several routers (specification 9, ruling 16)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import anyio
import psycopg
import pytest

from lemon_core.bus import Bus
from lemon_core.runs import RunRequest
from lemon_core.store import RunStore, StoreSettings, open_store
from lemon_core.testing import FakeClock
from lemon_router import shared_ownership
from lemon_router.admission import TERMINAL, AdmissionStore
from lemon_router.shared_ownership import NODES
from lemon_router.tests.forms import served
from lemon_router.tests.rig import SESSION
from lemon_router.tests.shared import OneAtATime, shared_router, time_passes

pytestmark = pytest.mark.anyio

OTHER = "agent:default:main:sub:other"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine() -> OneAtATime:
    return OneAtATime(Bus())


@pytest.fixture(autouse=True)
async def limited() -> AsyncIterator[None]:
    with anyio.fail_after(20):
        yield


async def ended(url: str, run_id: str) -> str:
    """How a run ended, once it has."""
    return await reached(url, run_id, TERMINAL)


async def reached(url: str, run_id: str, states: AbstractSet[str]) -> str:
    """The state of a run's record, once that is one of these."""
    async with open_store(StoreSettings("postgres", url=url), FakeClock()) as store:
        while True:
            record = await AdmissionStore(store).get(run_id)
            if record is not None and record.state in states:
                return record.state


def cut_off(url: str) -> None:
    """End the connection of the one router that holds a session."""
    with psycopg.connect(url, autocommit=True) as outside:
        found = outside.execute(
            "SELECT pid FROM pg_locks WHERE locktype='advisory' GROUP BY pid HAVING count(*) > 1"
        ).fetchall()
        assert len(found) == 1
        outside.execute("SELECT pg_terminate_backend(%s)", found[0])
        held = "SELECT 1 FROM pg_locks WHERE locktype='advisory' AND pid=%s"
        while outside.execute(held, found[0]).fetchone():
            pass


@pytest.mark.behaviour("lemon_router.110")
async def test_messages_of_one_session_run_one_after_the_other_whichever_router_they_reach(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    """Nothing moves the clock: whoever waits is told."""
    async with (
        shared_router(url, "a", engine, tmp_path, clock) as a,
        shared_router(url, "b", engine, tmp_path, clock) as b,
    ):
        first = await a.submit("run_1")
        assert first.detail == {"disposition": "started"}
        await engine.wait_submitted("run_1")
        second = await b.submit("run_2")
        assert second.detail == {"disposition": "queued", "position": 1}
        assert await b.router.active_run(SESSION) is None
        # Another session is nobody's, and starts there at once.
        other = await b.submit("run_3", session_key=OTHER)
        assert other.detail == {"disposition": "started"}
        assert engine.submitted[0] == "run_1"
        engine.complete("run_1")
        await engine.wait_submitted("run_2")
        # It has moved for good: the former owner has to ask now.
        assert (a.locks.holds(SESSION), b.locks.holds(SESSION)) == (False, True)


@pytest.mark.behaviour("lemon_router.110")
async def test_a_session_that_is_idle_moves_at_once(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with (
        shared_router(url, "a", engine, tmp_path, clock) as a,
        shared_router(url, "b", engine, tmp_path, clock) as b,
    ):
        await a.submit("run_1")
        await engine.wait_submitted("run_1")
        engine.complete("run_1")
        assert await ended(url, "run_1") == "completed"
        assert a.locks.holds(SESSION)
        await b.submit("run_2")
        await engine.wait_submitted("run_2")


@pytest.mark.behaviour("lemon_router.110")
async def test_a_long_line_in_one_router_does_not_shut_out_another(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with (
        shared_router(url, "a", engine, tmp_path, clock) as a,
        shared_router(url, "b", engine, tmp_path, clock) as b,
    ):
        for run_id in ("a_1", "a_2", "a_3"):
            await a.submit(run_id)
        await engine.wait_submitted("a_1")
        await b.submit("b_1")
        await a.wanted.wait()
        # The clock stands still: the owner leaves the other a moment for it.
        engine.complete("a_1")
        await engine.wait_submitted("b_1")
        async with time_passes(clock):
            for run_id in ("b_1", "a_2", "a_3"):
                await engine.wait_submitted(run_id)
                engine.complete(run_id)
        assert engine.submitted == ["a_1", "b_1", "a_2", "a_3"]


@pytest.mark.behaviour("lemon_router.110")
async def test_a_new_session_costs_one_journey_and_its_further_messages_none(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with shared_router(url, "a", engine, tmp_path, clock) as a:
        for number in range(5):
            await a.submit(f"run_{number}")
            await engine.wait_submitted(f"run_{number}")
            if number % 2:
                await a.submit(f"queued_{number}")
            engine.complete(f"run_{number}")
            if number % 2:
                await engine.wait_submitted(f"queued_{number}")
                engine.complete(f"queued_{number}")
            assert await ended(url, f"run_{number}") == "completed"
        assert a.asked == [SESSION]


@pytest.mark.behaviour("lemon_router.23")
async def test_a_session_that_nobody_uses_is_given_back(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with shared_router(url, "a", engine, tmp_path, clock, idle_ms=300_000) as a:
        await a.submit("run_1")
        await engine.wait_submitted("run_1")
        await a.submit("run_2", session_key=OTHER)
        engine.complete("run_1")
        assert await ended(url, "run_1") == "completed"
        await clock.advance(299_000)
        assert a.locks.holds(SESSION)
        await clock.advance(1_000)
        assert not a.locks.holds(SESSION)
        # One with a run stays, however long that takes.
        await clock.advance(900_000)
        assert a.locks.holds(OTHER)


@pytest.mark.behaviour("lemon_router.110")
async def test_a_router_that_was_only_cut_off_for_a_moment_keeps_its_run(
    url: str, engine: OneAtATime, tmp_path: Path
) -> None:
    """Its session is taken meanwhile, and given back because the run is going on."""
    clock, others_clock = FakeClock(), FakeClock()
    async with (
        open_store(StoreSettings("postgres", url=url), clock) as store,
        shared_router(url, "a", engine, tmp_path, clock) as a,
        shared_router(url, "b", engine, tmp_path, others_clock) as b,
        shared_router(url, "c", engine, tmp_path, others_clock) as c,
    ):
        await a.submit("run_1")
        await engine.wait_submitted("run_1")
        await reached(url, "run_1", {"submitted"})
        runs = RunStore(store, clock)
        await runs.begin("run_1", b"d", session_key=SESSION)
        cut_off(url)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(b.submit, "run_2")
            while not b.locks.holds(SESSION):
                await anyio.lowlevel.checkpoint()
            async with time_passes(clock):
                while not a.locks.connected:
                    await anyio.lowlevel.checkpoint()
            # It is back before the other one is sure that it is dead; and a third one comes.
            tasks.start_soon(c.submit, "run_3")
            async with time_passes(others_clock):
                while not a.locks.holds(SESSION):
                    await anyio.lowlevel.checkpoint()
        assert engine.submitted == ["run_1"]
        assert await a.router.active_run(SESSION) == "run_1"
        await runs.finalize("run_1", {"completed": {"ok": True}, "session_key": SESSION})
        async with time_passes(clock), time_passes(others_clock):
            engine.complete("run_1")
            while len(engine.submitted) < 3:
                for run_id in engine.submitted[1:]:
                    if engine.runs[run_id].terminal is None:
                        engine.complete(run_id)
                await anyio.lowlevel.checkpoint()
            engine.complete(engine.submitted[2])
            for run_id in ("run_1", "run_2", "run_3"):
                assert await ended(url, run_id) == "completed"


async def test_of_many_idle_sessions_the_oldest_are_given_back(
    url: str,
    engine: OneAtATime,
    clock: FakeClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_ownership, "MAX_IDLE", 2)
    sessions = [f"agent:default:main:sub:s{number}" for number in range(4)]
    async with shared_router(url, "a", engine, tmp_path, clock) as a:
        for session in sessions:
            await a.submit(session, session_key=session)
            await engine.wait_submitted(session)
        # The first one still runs.
        for session in sessions[1:]:
            engine.complete(session)
            assert await ended(url, session) == "completed"
        assert [a.locks.holds(session) for session in sessions] == [True, False, True, True]


@pytest.mark.behaviour("lemon_router.110")
async def test_what_a_dead_router_left_running_ends_before_the_session_goes_on(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    """The gateway lives on, and so does the run of the router that is gone."""
    async with shared_router(url, "b", engine, tmp_path, clock) as b:
        async with shared_router(url, "a", engine, tmp_path, clock) as a:
            await a.submit("run_1")
            await engine.wait_submitted("run_1")
        await b.submit("run_2")
        async with time_passes(clock):
            while await b.router.active_run(SESSION) != "run_1":
                await anyio.lowlevel.checkpoint()
            assert engine.submitted == ["run_1"]
            engine.complete("run_1")
            await engine.wait_submitted("run_2")
            engine.complete("run_2")
            assert await ended(url, "run_1") == "completed"
            assert await ended(url, "run_2") == "completed"
            # The dead one left nothing more, so nobody looks for it any longer.
            while b.locks.known:
                await anyio.lowlevel.checkpoint()
            assert (await b.submit("run_3", session_key=OTHER)).detail == {"disposition": "started"}


@pytest.mark.behaviour("lemon_router.110")
async def test_a_server_goes_on_with_the_work_of_a_dead_router_without_being_asked(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with shared_router(url, "b", engine, tmp_path, clock, watching=True) as b:
        async with shared_router(url, "a", engine, tmp_path, clock) as a:
            await a.submit("run_1")
            await engine.wait_submitted("run_1")
            await a.submit("run_2")
            # As long as it lives there is nothing to do.
            await clock.advance(5_000)
            assert b.router.live_records() == []
        engine.complete("run_1")
        async with time_passes(clock):
            await engine.wait_submitted("run_2")
            engine.complete("run_2")
            for run_id in ("run_1", "run_2"):
                assert await ended(url, run_id) == "completed"


@pytest.mark.behaviour("lemon_router.110")
async def test_of_two_heirs_one_looks_after_the_run_and_the_other_waits(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with (
        shared_router(url, "b", engine, tmp_path, clock) as b,
        shared_router(url, "c", engine, tmp_path, clock) as c,
    ):
        async with shared_router(url, "a", engine, tmp_path, clock) as a:
            await a.submit("run_1")
            await engine.wait_submitted("run_1")
        async with time_passes(clock):
            await b.submit("run_b")
            await c.submit("run_c")
            while "run_1" not in {
                await b.router.active_run(SESSION),
                await c.router.active_run(SESSION),
            }:
                await anyio.lowlevel.checkpoint()
            engine.complete("run_1")
            while len(engine.submitted) < 3:
                for run_id in engine.submitted[1:]:
                    if engine.runs[run_id].terminal is None:
                        engine.complete(run_id)
                await anyio.lowlevel.checkpoint()
            engine.complete(engine.submitted[2])
            for run_id in ("run_1", "run_b", "run_c"):
                assert await ended(url, run_id) == "completed"


@pytest.mark.behaviour("lemon_router.110")
async def test_a_router_that_was_taken_for_dead_lets_go_of_what_others_adopted(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with (
        shared_router(url, "b", engine, tmp_path, FakeClock()) as b,
        shared_router(url, "a", engine, tmp_path, clock) as a,
    ):
        await a.submit("run_1")
        await engine.wait_submitted("run_1")
        await a.submit("run_2")
        await reached(url, "run_1", {"submitted"})
        cut_off(url)
        # While its clock stands still it does not connect again.
        await b.router.others.adopt()
        assert await b.router.active_run(SESSION) == "run_1"
        async with time_passes(clock):
            while a.router.live_records():
                await anyio.lowlevel.checkpoint()
        assert await a.router.active_run(SESSION) is None
        engine.complete("run_1")
        await engine.wait_submitted("run_2")
        engine.complete("run_2")
        for run_id in ("run_1", "run_2"):
            assert await ended(url, run_id) == "completed"
        assert engine.submitted == ["run_1", "run_2"]


@pytest.mark.behaviour("lemon_router.110")
async def test_an_abort_reaches_the_router_that_has_the_run(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with (
        shared_router(url, "a", engine, tmp_path, clock) as a,
        shared_router(url, "b", engine, tmp_path, clock) as b,
    ):
        await a.submit("run_1")
        await engine.wait_submitted("run_1")
        for run_id in ("run_2", "run_3", "run_4"):
            await a.submit(run_id)
        await b.router.abort_run("run_3")
        assert await ended(url, "run_3") == "aborted"
        await b.router.abort_session_of(SESSION, "new_session", owner="operator")
        for run_id in ("run_2", "run_4"):
            assert await ended(url, run_id) == "aborted"
        while engine.cancelled != [("run_1", "new_session")]:
            await anyio.lowlevel.checkpoint()
        # The session is idle when it is here.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(b.router.session_idle, SESSION)
            await a.wanted.wait()
            engine.complete("run_1", ok=False, error="user_requested")
        assert (a.locks.holds(SESSION), b.locks.holds(SESSION)) == (False, True)
        assert await ended(url, "run_1") == "aborted"
        await b.submit("run_5")
        await engine.wait_submitted("run_5")
        await a.router.abort_session(SESSION)
        while engine.cancelled[-1] != ("run_5", "user_requested"):
            await anyio.lowlevel.checkpoint()


@pytest.mark.behaviour("lemon_router.110")
async def test_without_its_connection_a_router_starts_nothing_and_then_goes_on(
    url: str, engine: OneAtATime, clock: FakeClock, tmp_path: Path
) -> None:
    async with shared_router(url, "a", engine, tmp_path, clock) as a:
        await a.submit("run_1")
        await engine.wait_submitted("run_1")
        await reached(url, "run_1", {"submitted"})
        cut_off(url)
        while a.locks.connected:
            await anyio.lowlevel.checkpoint()
        engine.complete("run_1")
        assert await ended(url, "run_1") == "completed"
        async with anyio.create_task_group() as tasks:
            # Its answer waits a moment for the lock's.
            tasks.start_soon(a.submit, "run_2")
            await reached(url, "run_2", {"accepted"})
            assert engine.submitted == ["run_1"]
            async with time_passes(clock):
                await engine.wait_submitted("run_2")
                engine.complete("run_2")
                assert await ended(url, "run_2") == "completed"


@pytest.mark.behaviour("lemon_router.110")
async def test_two_running_servers_share_a_store_and_keep_a_session_apart(url: str) -> None:
    request = {"prompt": "hi", "session_key": SESSION}
    async with (
        served(store_url=url) as one,
        served(store_url=url) as two,
        one.client() as at_one,
        two.client() as at_two,
    ):
        await at_one.submit_run(RunRequest(run_id="run_1", **request))
        await one.engine.wait_submitted("run_1")
        second = await at_two.submit_run(RunRequest(run_id="run_2", **request))
        assert second.detail == {"disposition": "queued", "position": 1}
        assert two.engine.submitted == []
        one.engine.complete("run_1")
        await two.engine.wait_submitted("run_2")
        two.engine.complete("run_2")
        assert await ended(url, "run_2") == "completed"
    async with open_store(StoreSettings("postgres", url=url), FakeClock()) as store:
        # Both left nothing behind, so nobody needs to know them any more.
        assert await store.load_all(NODES) == []
