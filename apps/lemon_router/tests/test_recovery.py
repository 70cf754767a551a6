"""What a new process does about the runs of a former one (specification lemon_router 9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from lemon_core.bus import Bus, session_topic
from lemon_core.events import Completion, RunCompleted
from lemon_router.router import Router
from lemon_router.tests.rig import SESSION, Rig, Seen, make_router, rig
from lemon_router.tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio

OTHER = "agent:default:main:sub:other"
STEERS = ("steer", "steer_backlog", "redirect")


@asynccontextmanager
async def next_process(
    r: Rig, home: Path, engine: ScriptedEngine, seen: Seen | None = None
) -> AsyncIterator[Router]:
    """A router that starts on what the one of `r` has left in the store."""
    async with anyio.create_task_group() as tasks:
        router = make_router(engine, r.store, engine.bus, r.clock, home, tasks, seen=seen)
        await router.recover(r.runs)
        yield router
        tasks.cancel_scope.cancel()


async def settled() -> None:
    for _ in range(30):
        await anyio.lowlevel.checkpoint()


async def begun(r: Rig, run_id: str) -> None:
    await r.engine.wait_submitted(run_id)
    await r.runs.begin(run_id, b"digest", session_key=SESSION)
    # The mark is in the store; who made it is gone.
    r.store.memory_table("runs").pop(run_id, None)


@pytest.mark.behaviour("lemon_router.39")
async def test_queued_messages_run_by_themselves_and_in_order(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await begun(r, "run_1")
        for number in (2, 3, 4):
            await r.submit(f"run_{number}")
        r.engine.complete("run_1")
        await settled()
        await r.submit("run_5", queue_mode="interrupt")
        await settled()
        engine = ScriptedEngine(Bus())
        # run_2 was sent to the gateway and never begun there; run_5 was to interrupt it.
        async with next_process(r, tmp_path, engine) as after:
            for run_id in ("run_2", "run_5", "run_3", "run_4"):
                await engine.wait_submitted(run_id)
                assert await after.active_run(SESSION) == run_id
                engine.complete(run_id)
                await settled()
            await after.drained()
            assert engine.submitted == ["run_2", "run_5", "run_3", "run_4"]
            assert {await after.admission(f"run_{n}") for n in range(1, 6)} == {"completed"}


@pytest.mark.behaviour("lemon_router.39")
async def test_what_had_begun_is_lost_and_never_executed_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await begun(r, "run_1")
        await r.submit("run_2")
        engine = ScriptedEngine(Bus())
        with engine.bus.subscribe(session_topic(SESSION)) as events:
            async with next_process(r, tmp_path, engine) as after:
                await engine.wait_submitted("run_2")
                record = await after.record("run_1")
                assert record is not None
                assert (record.state, record.error) == ("failed", "run_lost")
                assert (await after.submit({"prompt": "hi", "run_id": "run_1"})).duplicate
                assert engine.submitted == ["run_2"]
            seen = await events.receive_batch()
        ends = [e.payload for e in seen if isinstance(e.payload, RunCompleted)]
        assert [end.completed.error for end in ends] == ["run_lost"]


@pytest.mark.behaviour("lemon_router.39")
async def test_a_run_with_its_summary_ends_as_that_says(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for run_id, session, ok in (("run_1", SESSION, True), ("run_2", OTHER, False)):
            await r.submit(run_id, session_key=session)
            await r.engine.wait_submitted(run_id)
            error = None if ok else "user_requested"
            summary = {"completed": {"ok": ok, "error": error}, "session_key": session}
            await r.runs.finalize(run_id, summary)
        await settled()
        engine = ScriptedEngine(Bus())
        async with next_process(r, tmp_path, engine) as after:
            assert await after.admission("run_1") == "completed"
            assert await after.admission("run_2") == "aborted"
            assert await after.counts() == {"active": 0, "queued": 0, "completed_today": 0}
            assert engine.submitted == []
        async with next_process(r, tmp_path, engine) as after:
            assert after.live_records() == []


@pytest.mark.behaviour("lemon_router.39")
async def test_a_gateway_that_still_works_on_the_run_is_found_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        r.engine.start("run_1")
        await r.submit("run_2")
        await settled()
        r.engine.is_away = True
        async with next_process(r, tmp_path, r.engine) as after:
            # Nobody can tell: the run waits, and new work of its conversation behind it.
            await settled()
            assert (await after.submit({"prompt": "hi", "run_id": "run_3"})).status == "accepted"
            assert await after.active_run(SESSION) == "run_1"
            r.engine.is_away = False
            await r.clock.advance(2_000)
            r.engine.delta("run_1", 1, "still here")
            r.engine.complete("run_1", answer="still here")
            await r.engine.wait_submitted("run_2")
            assert r.engine.submitted == ["run_1", "run_2"]
            assert await after.admission("run_1") == "completed"


@pytest.mark.behaviour("lemon_router.39")
@pytest.mark.parametrize("mode", STEERS)
@pytest.mark.parametrize("taken", [True, False])
async def test_a_steer_under_way_is_absorbed_or_waits(
    mode: str, taken: bool, tmp_path: Path
) -> None:
    async with rig(tmp_path) as r:
        r.engine.mute_steers, r.engine.takes_steers = 9, taken
        await r.submit("run_1")
        await begun(r, "run_1")
        await r.submit("run_2", prompt="left!", queue_mode=mode)
        await settled()
        applied = {"applied_steers": ["run_2"]} if taken else {}
        summary = {"completed": {"ok": True}, "session_key": SESSION, **applied}
        await r.runs.finalize("run_1", summary)
        engine = ScriptedEngine(Bus())
        async with next_process(r, tmp_path, engine) as after:
            if taken:
                record = await after.record("run_2")
                assert record is not None
                assert (record.state, record.absorbed_by) == ("absorbed", "run_1")
                assert engine.submitted == []
            else:
                await engine.wait_submitted("run_2")


OFFERS: list[dict[str, object]] = [
    {"queue_mode": "steer"},
    {"queue_mode": "steer_backlog"},
    {"queue_mode": "redirect"},
    {"queue_mode": "followup", "meta": {"task_auto_followup": True}},
]


@pytest.mark.behaviour("lemon_router.39")
@pytest.mark.parametrize("fields", OFFERS)
@pytest.mark.parametrize("lost", [True, False])
async def test_what_was_offered_to_a_run_that_is_lost_is_not_executed_again(
    fields: dict[str, object], lost: bool, tmp_path: Path
) -> None:
    """It may have been taken, and nobody is left to tell."""
    async with rig(tmp_path) as r:
        r.engine.mute_steers = 9
        await r.submit("run_1")
        if lost:
            await begun(r, "run_1")
        run = await r.engine.wait_submitted("run_1")
        context = run.command.execution_context
        await r.submit("run_2", prompt="left!", execution_context=context, **fields)
        await settled()
        engine = ScriptedEngine(Bus()) if lost else r.engine
        async with next_process(r, tmp_path, engine) as after:
            await settled()
            if not lost:
                # The gateway still works on it, and tells at the end.
                r.engine.runs["run_1"].applied.clear()
                r.engine.complete("run_1")
                await r.engine.wait_submitted("run_2")
                return
            record = await after.record("run_2")
            assert record is not None
            assert (record.state, record.absorbed_by) == ("absorbed", "run_1")
            assert engine.submitted == []


async def test_what_was_offered_to_a_run_that_is_lost_meanwhile_is_absorbed(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        r.engine.mute_steers = 9
        await r.submit("run_1")
        await begun(r, "run_1")
        await r.submit("run_2", prompt="left!", queue_mode="steer")
        await settled()
        r.engine.epoch = "another"
        r.engine.lose("run_1")
        await settled()
        await r.clock.advance(200)
        await settled()
        assert await r.router.admission("run_2") == "absorbed"
        assert r.engine.submitted == ["run_1"]


@pytest.mark.behaviour("lemon_router.39")
async def test_joined_messages_are_joined_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await begun(r, "run_1")
        for number, text in ((2, "a"), (3, "b"), (4, "c")):
            await r.submit(f"run_{number}", prompt=text, queue_mode="followup")
        await settled()
        engine = ScriptedEngine(Bus())
        async with next_process(r, tmp_path, engine):
            run = await engine.wait_submitted("run_4")
            assert run.command.prompt == "a\nb\nc"
            await settled()
            assert engine.submitted == ["run_4"]


@pytest.mark.behaviour("lemon_router.105")
async def test_a_run_that_dies_before_its_first_event_does_not_block_the_next(
    tmp_path: Path,
) -> None:
    """Field report: recovery counts as done as soon as the new dispatch is accepted."""
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        engine = ScriptedEngine(Bus())
        async with next_process(r, tmp_path, engine) as after:
            await engine.wait_submitted("run_1")
            # Taken, and gone with its gateway before it began: it is sent once more.
            engine.epoch = "another"
            engine.lose("run_1")
            await settled()
            await r.clock.advance(200)
            await engine.wait_submitted("run_1")
            # This time the gateway stays up and forgets it: it ends, and the next message runs.
            await after.submit({"prompt": "hi", "run_id": "run_2"})
            engine.lose("run_1")
            await settled()
            await r.clock.advance(200)
            await engine.wait_submitted("run_2")
            record = await after.record("run_1")
            assert record is not None
            assert record.state == "failed"


@pytest.mark.behaviour("lemon_router.40")
async def test_a_gateway_restart_in_the_middle_of_a_run_is_run_lost(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await begun(r, "run_1")
        with r.bus.subscribe(session_topic(SESSION)) as events:
            r.engine.epoch = "another"
            r.engine.lose("run_1")
            await settled()
            await r.clock.advance(200)
            await settled()
            seen = await events.receive_batch()
        ends = [e.payload.completed for e in seen if isinstance(e.payload, RunCompleted)]
        assert [(end.ok, end.error) for end in ends] == [(False, "run_lost")]
        assert r.engine.submitted == ["run_1"]


async def test_a_node_that_is_gone_is_run_lost_or_sent_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await begun(r, "run_1")
        await r.submit("run_2", session_key=OTHER)
        await r.engine.wait_submitted("run_2")
        for run_id in ("run_1", "run_2"):
            r.engine.lost_with = "node_lost"
            r.engine.lose(run_id)
        await settled()
        await r.clock.advance(20)
        await settled()
        assert await r.router.admission("run_1") == "failed"
        assert r.engine.submitted == ["run_1", "run_2", "run_2"]


async def test_a_damaged_record_ends_and_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.submit("run_2")
        await settled()
        row = await r.store.load("router_admissions", "run_2")
        assert isinstance(row, dict)
        await r.store.put("router_admissions", "run_2", {**row, "command": "{}"})
        engine = ScriptedEngine(Bus())
        async with next_process(r, tmp_path, engine) as after:
            record = await after.record("run_2")
            assert record is not None
            assert (record.state, record.error) == ("failed", "admission_damaged")
            await engine.wait_submitted("run_1")


@pytest.mark.behaviour("lemon_router.46")
async def test_going_down_relays_live_ends_and_leaves_the_queue(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.on_this_bus = True
        await r.submit("run_1")
        await begun(r, "run_1")
        await r.submit("run_2")
        await r.submit("run_3", session_key=OTHER)
        await r.engine.wait_submitted("run_3")
        r.engine.refuse_next = [OSError("no route")] * 3
        await r.router.refuse()
        assert (await r.submit("run_4")).status == "unavailable"
        with r.bus.subscribe(session_topic(SESSION)) as events:
            for run_id in ("run_1", "run_3"):
                r.engine.complete(run_id, ok=False, error="gateway_shutdown")
            await r.router.drained()
            seen = await events.receive_batch()
        assert seen[-1].type == "run_completed"
        assert await r.router.admission("run_2") == "queued"
        engine = ScriptedEngine(Bus())
        async with next_process(r, tmp_path, engine) as after:
            await engine.wait_submitted("run_2")
            assert await after.admission("run_1") == "failed"


@pytest.mark.behaviour("lemon_router.46")
async def test_runs_on_other_nodes_are_let_go_and_found_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        r.engine.start("run_1")
        await settled()
        await r.router.refuse()
        await r.router.drained()
        assert r.engine.cancelled == []
        async with next_process(r, tmp_path, r.engine) as after:
            r.engine.end("run_1", Completion(ok=True, answer="x"))
            await settled()
            await after.drained()
            assert await after.admission("run_1") == "completed"


@pytest.mark.behaviour("lemon_router.39")
async def test_the_runs_of_a_router_that_lives_are_left_to_it(tmp_path: Path) -> None:
    """On a shared store, a run moves on by the death of its router, never by age."""
    async with rig(tmp_path) as r, anyio.create_task_group() as tasks:
        dead = {"other": False}

        async def alive(router_id: str) -> bool:
            return not dead["other"]

        def another(engine: ScriptedEngine, name: str) -> Router:
            return make_router(
                engine,
                r.store,
                engine.bus,
                r.clock,
                tmp_path,
                tasks,
                router_id=name,
                alive=alive,
            )

        await r.submit("run_1")
        await begun(r, "run_1")
        await r.submit("run_2")
        await settled()
        engine = ScriptedEngine(Bus())
        first, second = another(engine, "first"), another(engine, "second")
        assert (await first.recover(r.runs), await second.recover(r.runs)) == (0, 0)
        await first.others.adopt()
        await settled()
        dead["other"] = True
        await first.others.adopt()
        await engine.wait_submitted("run_2")
        record = await first.record("run_1")
        assert record is not None
        assert (record.error, record.router) == ("run_lost", "first")
        dead["other"] = False
        assert await second.recover(r.runs) == 0
        assert engine.submitted == ["run_2"]
        tasks.cancel_scope.cancel()


async def test_a_short_lived_process_leaves_the_queue_to_others(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, anyio.create_task_group() as tasks:
        await r.submit("run_1")
        await begun(r, "run_1")
        await r.submit("run_2")
        await settled()
        engine = ScriptedEngine(Bus())
        short = make_router(engine, r.store, engine.bus, r.clock, tmp_path, tasks)
        await short.recover(r.runs, resume=False)
        await settled()
        assert await short.admission("run_1") == "failed"
        assert await short.admission("run_2") == "accepted"
        assert engine.submitted == []
        async with next_process(r, tmp_path, engine):
            await engine.wait_submitted("run_2")
        tasks.cancel_scope.cancel()
