"""Silence, binding, crashes and the second try of a run (specification lemon_router 5)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from lemon_core.bus import Bus, run_topic, session_topic
from lemon_core.events import Completion, Event, RunCompleted, RunFailed
from lemon_core.runs import RunRequest
from lemon_core.store import PolicyStore
from lemon_router.tests.rig import SESSION, Rig, make_router, rig, until_end
from lemon_router.tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio

IDLE_MS = 60_000


async def settled() -> None:
    for _ in range(30):
        await anyio.lowlevel.checkpoint()


async def active(r: Rig, run_id: str = "run_1", **fields: object) -> None:
    assert (await r.submit(run_id, **fields)).status == "accepted"
    await r.engine.wait_submitted(run_id)
    r.engine.start(run_id)
    await settled()


def ends(events: list[Event]) -> list[Completion]:
    return [e.payload.completed for e in events if isinstance(e.payload, RunCompleted)]


@pytest.mark.behaviour("lemon_router.26")
async def test_a_silent_run_is_ended_and_events_put_that_off(tmp_path: Path) -> None:
    async with rig(tmp_path, idle_timeout_ms=IDLE_MS) as r:
        await active(r)
        await r.clock.advance(IDLE_MS - 1)
        r.engine.delta("run_1", 1, "still here")
        await settled()
        await r.clock.advance(IDLE_MS - 1)
        assert await r.router.session_busy(SESSION)
        with r.bus.subscribe(session_topic(SESSION)) as events:
            await r.clock.advance(1)
            seen = await until_end(events)
        (end,) = ends(seen)
        assert end.error == {"code": "run_idle_watchdog_timeout", "detail": {"ms": IDLE_MS}}
        assert end.meta == {"synthetic": True}
        assert r.engine.cancelled == [("run_1", "run_watchdog_timeout")]
        await r.router.drained()
        assert await r.router.admission("run_1") == "failed"
        assert r.seen.settled.runs[0][0] == "run_1"


@pytest.mark.behaviour("lemon_router.26")
async def test_a_watchdog_of_zero_never_fires_and_people_can_decide(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r)
        await r.clock.advance(86_400_000)
        assert await r.router.session_busy(SESSION)
    async with rig(tmp_path, idle_timeout_ms=IDLE_MS) as r:
        await active(r)
        await r.clock.advance(IDLE_MS - 1)
        await r.router.keep_run_alive("run_1", "continue")
        await r.clock.advance(IDLE_MS - 1)
        assert await r.router.session_busy(SESSION)
        await r.router.keep_run_alive("run_1", "cancel")
        await r.router.keep_run_alive("nobody", "continue")
        await settled()
        assert r.engine.cancelled == [("run_1", "user_requested")]


async def test_a_run_that_its_gateway_does_not_know_after_the_start_ends(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.on_this_bus = True
        await active(r)
        del r.engine.runs["run_1"]
        with r.bus.subscribe(session_topic(SESSION)) as events:
            await r.clock.advance(200)
            assert await r.router.session_busy(SESSION)
            await r.clock.advance(1_500)
            (end,) = ends(await until_end(events))
        assert end.error == "gateway_run_missing_after_start"


async def test_a_run_that_is_known_in_time_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.on_this_bus = True
        await active(r)
        run = r.engine.runs.pop("run_1")
        await r.clock.advance(200)
        r.engine.runs["run_1"] = run
        await r.clock.advance(1_500)
        assert await r.router.session_busy(SESSION)
        r.engine.complete("run_1")
        await r.router.drained()
        assert await r.router.admission("run_1") == "completed"


async def test_a_broken_process_ends_its_run_and_leaves_the_others_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r, "run_1")
        await r.submit("run_2")
        process = r.router._lifecycle.process("run_1")
        assert process is not None

        def broken(event: Event) -> None:
            raise RuntimeError("a fault of the router")

        process._take = broken  # type: ignore[method-assign]  # a fault that no input can cause
        with r.bus.subscribe(session_topic(SESSION)) as events:
            r.engine.delta("run_1", 1, "x")
            seen = await until_end(events)
        assert seen[-1].payload == RunFailed(
            run_id="run_1", reason="run_process_terminated", session_key=SESSION
        )
        await r.engine.wait_submitted("run_2")
        assert r.engine.cancelled == [("run_1", "run_process_terminated")]
        assert await r.router.admission("run_1") == "failed"


async def test_any_error_of_a_submission_is_tried_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.refuse_next = [RuntimeError("odd"), ValueError("odder")]
        await r.submit("run_1")
        for _ in range(2):
            await settled()
            await r.clock.advance(200)
        await r.engine.wait_submitted("run_1")


async def test_the_place_in_a_long_stream_is_stored_now_and_then(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r)
        for seq in range(1, 120):
            r.engine.delta("run_1", seq, "x")
        await settled()
        record = await r.router.record("run_1")
        assert record is not None
        assert record.last_event_seq >= 50
        r.engine.complete("run_1")
        await r.router.drained()


FAILED = {"ok": False, "answer": " ", "error": "assistant_error: the model said nothing"}


@pytest.mark.behaviour("lemon_router.28")
async def test_a_run_that_failed_without_a_word_is_tried_once_more(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await PolicyStore(r.store).put("session", {"deny": ["bash"]}, SESSION)
        await active(r, prompt="do it")
        r.engine.end("run_1", Completion.model_validate(FAILED))
        run = await r.engine.wait_submitted("run_1-retry1")
        command = run.command
        assert command.prompt.endswith("\n\ndo it")
        assert "run_1" in command.prompt
        assert command.meta["zero_answer_retry_attempt"] == 1
        assert command.meta["zero_answer_retry_of_run"] == "run_1"
        assert command.meta["zero_answer_retry_reason"] == FAILED["error"]
        assert command.execution_context is not None
        assert command.execution_context.run_id == "run_1-retry1"
        assert not command.execution_context.capabilities.allowed("bash")
        r.engine.end("run_1-retry1", Completion.model_validate(FAILED))
        await r.router.drained()
        assert r.engine.submitted == ["run_1", "run_1-retry1"]


@pytest.mark.behaviour("lemon_router.28")
@pytest.mark.parametrize(
    "end",
    [
        {**FAILED, "answer": "half"},
        {**FAILED, "error": "user_requested"},
        {**FAILED, "error": {"code": "timeout", "message": "assistant error"}},
        {**FAILED, "error": "assistant_error: context_length_exceeded"},
        {**FAILED, "error": "lock_timeout"},
        {**FAILED, "error": {"code": "assistant_error", "detail": {"category": "auth"}}},
        {**FAILED, "ok": True},
    ],
    ids=["answer", "abort", "timeout", "overflow", "other error", "refused key", "ok"],
)
async def test_nothing_else_is_tried_again(end: dict[str, object], tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r)
        r.engine.end("run_1", Completion.model_validate(end))
        await r.router.drained()
        assert r.engine.submitted == ["run_1"]


@pytest.mark.behaviour("lemon_router.28")
async def test_a_restart_does_not_try_twice(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r)
        r.engine.end("run_1", Completion.model_validate(FAILED))
        await r.engine.wait_submitted("run_1-retry1")
        r.engine.complete("run_1-retry1")
        await r.router.drained()
        async with anyio.create_task_group() as tasks:
            engine = ScriptedEngine(Bus())
            after = make_router(engine, r.store, engine.bus, r.clock, tmp_path, tasks)
            await after.recover(r.runs)
            record = await after.record("run_1-retry1")
            assert record is not None
            again = await after.submit(RunRequest(prompt="x", run_id="run_1-retry1"))
            assert (again.status, again.reason) == ("rejected", "run_id_conflict")
            assert engine.submitted == []
            tasks.cancel_scope.cancel()


async def test_where_nobody_waits_for_a_second_answer_none_is_tried(tmp_path: Path) -> None:
    async with rig(tmp_path, tries_again=False) as r:
        await active(r)
        r.engine.end("run_1", Completion.model_validate(FAILED))
        await r.router.drained()
        assert r.engine.submitted == ["run_1"]


async def test_the_ends_of_runs_are_recorded_without_what_was_said(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r, prompt="a secret")
        r.engine.complete("run_1", answer="another secret")
        await r.router.drained()
        await r.submit("run_2", agent_id="nobody")
        assert r.seen.recorded == [
            (
                "orchestration_resolved",
                {"origin": "unknown", "queue_mode": "collect", "disposition": "started"},
            ),
            ("run_completed", {"ok": True, "duration_ms": 1}),
            ("orchestration_failed", {"origin": "unknown", "reason": "unknown_agent_id"}),
        ]


class BrokenRecords(list[tuple[str, dict[str, object]]]):
    """What keeps records of ends, and cannot."""

    def append(self, item: tuple[str, dict[str, object]]) -> None:
        if item[0] in {"run_completed", "run_failed"}:
            raise RuntimeError("no")


@pytest.mark.behaviour("lemon_router.29")
async def test_a_step_after_the_end_that_fails_takes_neither_the_answer_nor_the_session(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        r.seen.recorded = BrokenRecords()
        with r.bus.subscribe(run_topic("run_1")) as events:
            await r.submit("run_1")
            await r.submit("run_2")
            await r.engine.wait_submitted("run_1")
            r.engine.complete("run_1", answer="here it is")
            end = (await until_end(events))[-1].payload
        assert isinstance(end, RunCompleted)
        assert end.completed.answer == "here it is"
        await r.engine.wait_submitted("run_2")
        assert await r.router.admission("run_1") == "completed"
        assert r.router.journal.snapshot("run_1") is not None


@pytest.mark.behaviour("lemon_router.18")
async def test_cancelling_the_active_run_leaves_what_waits_behind_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for run_id in ("run_1", "run_2", "run_3"):
            await r.submit(run_id)
        await r.engine.wait_submitted("run_1")
        active = await r.router.active_run(SESSION)
        assert active == "run_1"
        await r.router.abort_run(active)
        await r.clock.wait_for_sleepers()
        assert r.engine.cancelled == [("run_1", "user_requested")]
        r.engine.complete("run_1", ok=False, error="user_requested")
        await r.engine.wait_submitted("run_2")
        assert await r.router.admission("run_3") == "queued"
