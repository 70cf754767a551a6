"""The life of a run: order of events, numbers, faults of the executor, cancel and steer."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.bus import run_topic
from lemon_core.errors import is_context_overflow
from lemon_core.events import Delta, Event, RunCompleted
from lemon_core.resume import ResumeToken
from lemon_core.testing import FakeClock
from lemon_gateway.config import GatewaySettings
from lemon_gateway.engine_lock import lock_key
from lemon_gateway.executor import ExecutorError, RunHandle, RunOptions, Sink
from lemon_gateway.requests import (
    Action,
    EngineAction,
    EngineCompleted,
    EngineDelta,
    EngineEvent,
    EngineStarted,
    ExecutionRequest,
)
from lemon_gateway.tests.fakes import (
    SESSION,
    Control,
    Gateway,
    ScriptedExecutor,
    answer_hello,
    command,
    request,
    running_gateway,
    settle,
)

NO_WAIT = GatewaySettings(node_id="node-1", max_concurrent_runs=4, engine_lock_timeout_ms=0)


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def assert_numbered(events: list[Event]) -> None:
    assert [event.meta["event_seq"] for event in events] == list(range(1, len(events) + 1))


async def run_once(gateway: Gateway, run_id: str = "run_1") -> list[Event]:
    """Submit a run and collect its events from the bus and from the stream, which must agree."""
    with gateway.bus.subscribe(run_topic(run_id)) as told:
        await gateway.runtime.submit_execution(command(run_id))
        events = await gateway.events(run_id)
        assert [await anext(told) for _ in events] == events
    assert_numbered(events)
    return events


@pytest.mark.behaviour("lemon_gateway.10")
async def test_a_successful_run_has_the_full_order() -> None:
    """Specification lemon_gateway 1.3: order for one run, event_seq without gaps."""

    async def script(control: Control) -> None:
        await control.started("sess_1")
        await control.say("a")
        action = Action(id="tool_1", kind="tool", title="read")
        await control.sink.send(EngineAction(control.ref, action, "completed", ok=True))
        await control.sink.send(EngineEvent(control.ref, {"note": 1}))
        await control.complete("done", token="sess_1")

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            events = await run_once(gateway)
    assert types(events) == [
        "run_started",
        "engine_started",
        "delta",
        "engine_action",
        "engine_event",
        "engine_completed",
        "run_completed",
    ]
    assert {event.meta["run_id"] for event in events} == {"run_1"}
    assert {event.meta["session_key"] for event in events} == {SESSION}


@pytest.mark.behaviour("lemon_gateway.10", "lemon_gateway.12")
async def test_an_executor_that_refuses_has_start_and_end_only() -> None:
    """Specification lemon_gateway 1.3: run_started then run_completed."""

    async def refuse(_: Control) -> None:
        raise ExecutorError("coding_agent_unavailable", "services are not up")

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(refuse)) as gateway:
            events = await run_once(gateway)
            completed = await gateway.end("run_1")
    assert types(events) == ["run_started", "run_completed"]
    assert completed.error == {
        "code": "coding_agent_unavailable",
        "message": "services are not up",
    }


@pytest.mark.behaviour("lemon_gateway.8", "lemon_gateway.10")
async def test_a_lock_timeout_ends_the_run_and_frees_the_slot() -> None:
    """Specification lemon_gateway 3.5: finalize lock_timeout, the slot is freed."""
    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(answer_hello), settings=NO_WAIT) as gateway:
            lease = await gateway.runtime.lock.acquire(lock_key(request("run_0")), "run_0")
            events = await run_once(gateway)
            assert types(events) == ["run_completed"]
            completed = await gateway.end("run_1")
            assert not completed.ok
            assert isinstance(completed.error, dict)
            assert completed.error["code"] == "lock_timeout"
            await settle()
            assert gateway.runtime.scheduler.counts().in_flight == 0
            gateway.runtime.lock.release(lease)
            await gateway.runtime.submit_execution(command("run_2"))
            assert (await gateway.end("run_2")).ok


@pytest.mark.behaviour("lemon_gateway.9")
async def test_sessions_that_resume_one_token_exclude_each_other() -> None:
    """Specification lemon_gateway 3.4: the key is the resume value when a token is present."""
    token = ResumeToken(engine="lemon", value="sess_1")
    first = command("run_1", session_key="agent:a:main", resume=token)
    second = command("run_2", session_key="agent:b:main", resume=token)
    with anyio.fail_after(5):
        async with running_gateway(settings=NO_WAIT) as gateway:
            await gateway.runtime.submit_execution(first)
            control = await gateway.executor.run("run_1")
            await gateway.runtime.submit_execution(second)
            completed = await gateway.end("run_2")
            assert isinstance(completed.error, dict)
            assert completed.error["code"] == "lock_timeout"
            await control.complete("one")
            assert (await gateway.end("run_1")).answer == "one"


@pytest.mark.behaviour("lemon_gateway.9")
async def test_without_required_lock_nobody_waits() -> None:
    """Specification lemon_gateway 3.5: require_engine_lock = false skips the lock."""
    settings = GatewaySettings(node_id="node-1", require_engine_lock=False)
    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(answer_hello), settings=settings) as gateway:
            lease = await gateway.runtime.lock.acquire(lock_key(request("run_0")), "run_0")
            await gateway.runtime.submit_execution(command("run_1"))
            assert (await gateway.end("run_1")).ok
            gateway.runtime.lock.release(lease)


@pytest.mark.behaviour("lemon_gateway.11")
async def test_delta_numbers_and_first_token() -> None:
    """Specification lemon_gateway 3.5: seq from 1 without gaps, first_token once."""

    async def script(control: Control) -> None:
        await control.say("one ", "", "two ", "three")
        await control.complete("")

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            events = await run_once(gateway)
            completed = await gateway.end("run_1")
            deltas = [event.payload for event in events if isinstance(event.payload, Delta)]
            assert [(delta.seq, delta.text) for delta in deltas] == [
                (1, "one "),
                (2, "two "),
                (3, "three"),
            ]
            assert completed.answer == "one two three"
            assert len(gateway.numbers("lemon.run.first_token")) == 1
            assert gateway.numbers("lemon.run.stop") == [{"duration_ms": 0, "ok": True}]


@pytest.mark.behaviour("lemon_gateway.11")
async def test_a_given_answer_stays() -> None:
    """Specification lemon_gateway 3.5: only an absent or empty answer is replaced."""

    async def script(control: Control) -> None:
        await control.say("thinking aloud")
        await control.complete("42")

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            assert (await gateway.end("run_1")).answer == "42"
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            assert snapshot.accumulated_text == "thinking aloud"


class JunkExecutor(ScriptedExecutor):
    """Returns what no executor may return."""

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        return "started"  # type: ignore[return-value]


@pytest.mark.behaviour("lemon_gateway.12")
async def test_junk_and_exceptions_of_the_executor_end_in_one_structured_completion() -> None:
    """Specification lemon_gateway 2: anything else is invalid_executor_start_result."""

    async def crash(_: Control) -> None:
        raise RuntimeError("x" * 5_000)

    with anyio.fail_after(5):
        async with running_gateway(JunkExecutor()) as gateway:
            assert types(await run_once(gateway)) == ["run_started", "run_completed"]
            assert (await gateway.end("run_1")).error == {
                "code": "invalid_executor_start_result",
                "message": "start_run returned str",
            }
            assert (await gateway.runtime.health()).ok
        async with running_gateway(ScriptedExecutor(crash)) as gateway:
            assert types(await run_once(gateway)) == ["run_started", "run_completed"]
            error = (await gateway.end("run_1")).error
            assert isinstance(error, dict)
            assert error["code"] == "executor_start_exception"
            text = str(error["message"])
            assert text.startswith("RuntimeError: xxx")
            assert text.endswith("...[truncated 3990 bytes]")
            assert (await gateway.runtime.health()).ok


async def test_nonsense_in_a_message_ends_the_run_as_crashed() -> None:
    """Specification lemon_gateway 3.5: any escape still finalizes as run_crashed."""

    async def script(control: Control) -> None:
        await control.sink.send(EngineDelta(control.ref, 7))  # type: ignore[arg-type]

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            events = await run_once(gateway)
            error = (await gateway.end("run_1")).error
            assert types(events) == ["run_started", "run_completed"]
            assert isinstance(error, dict)
            assert error["code"] == "run_crashed"
            assert gateway.executor.controls["run_1"].cancels == 1
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            assert snapshot.phase == "failed"


@pytest.mark.behaviour("lemon_gateway.13")
async def test_messages_of_another_run_change_nothing() -> None:
    """Specification lemon_gateway 2: messages whose run_ref is not this run's are ignored."""

    async def script(control: Control) -> None:
        foreign = "ref-other"
        await control.sink.send(EngineStarted(foreign, ResumeToken(engine="lemon", value="x")))
        await control.sink.send(EngineDelta(foreign, "not mine"))
        await control.sink.send(EngineCompleted(foreign, False, error="not mine"))
        await control.say("mine")
        await control.complete()

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            events = await run_once(gateway)
            completed = await gateway.end("run_1")
    assert types(events) == ["run_started", "delta", "engine_completed", "run_completed"]
    assert (completed.ok, completed.answer, completed.resume) == (True, "mine", None)


@pytest.mark.behaviour("lemon_gateway.13")
async def test_messages_sent_before_start_run_returns_come_in_order() -> None:
    """Specification lemon_gateway 2: they are kept and processed in order."""
    gate = anyio.Event()

    async def script(control: Control) -> None:
        await control.started()
        await control.say("a", "b")
        await gate.wait()
        await control.say("c")
        await control.complete()

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            await gateway.executor.run("run_1")
            await settle()
            assert gateway.runtime.journal.last_seq("run_1") == 1
            gate.set()
            assert (await gateway.end("run_1")).answer == "abc"


async def test_a_full_sink_makes_the_executor_wait_and_drops_nothing() -> None:
    """Specification lemon_gateway 2: the sink holds 1,024 messages and never drops."""
    sent = 0

    async def talk(control: Control) -> None:
        nonlocal sent
        for _ in range(1_500):
            await control.say("x")
            sent += 1
        await control.complete()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            gate = anyio.Event()

            async def script(control: Control) -> None:
                tasks.start_soon(talk, control)
                await gate.wait()

            async with running_gateway(ScriptedExecutor(script)) as gateway:
                await gateway.runtime.submit_execution(command("run_1"))
                await gateway.executor.run("run_1")
                await settle()
                assert sent == 1_024
                gate.set()
                completed = await gateway.end("run_1")
                assert completed.answer == "x" * 1_500


async def test_an_executor_that_says_nothing_leaves_the_run_active() -> None:
    """Specification lemon_gateway 2: the router's watchdog decides about a silent run."""
    clock = FakeClock()
    with anyio.fail_after(5):
        async with running_gateway(clock=clock) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await clock.advance(3_600_000)
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            assert (snapshot.state, snapshot.phase) == ("running", "streaming")
            await control.complete("late")
            assert (await gateway.end("run_1")).answer == "late"


@pytest.mark.parametrize("as_task", [True, False])
async def test_a_finished_executor_without_completion_ends_the_run_after_a_second(
    as_task: bool,
) -> None:
    """Specification lemon_gateway 2: executor_exited_without_completion, only with `done`."""
    import asyncio

    executor, over, clock = ScriptedExecutor(), asyncio.Event(), FakeClock()

    def done(_: Control) -> object:
        return asyncio.ensure_future(over.wait()) if as_task else over.wait()

    executor.done = done  # type: ignore[assignment]
    with anyio.fail_after(5):
        async with running_gateway(executor, clock=clock) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await executor.run("run_1")
            await control.started("sess_9")
            await control.say("half")
            before = clock.sleepers
            over.set()
            await clock.wait_for_sleepers(before + 1)
            await clock.advance(999)
            assert gateway.runtime.journal.is_live("run_1")
            await clock.advance(1)
            completed = await gateway.end("run_1")
    assert completed.error == "executor_exited_without_completion"
    assert completed.answer == "half"
    assert completed.resume == ResumeToken(engine="lemon", value="sess_9")


async def test_a_completion_within_the_second_counts() -> None:
    """Specification lemon_gateway 2: finishes without a completion within 1 s."""
    import asyncio

    executor, over, clock = ScriptedExecutor(), asyncio.Event(), FakeClock()
    executor.done = lambda _: over.wait()
    with anyio.fail_after(5):
        async with running_gateway(executor, clock=clock) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await executor.run("run_1")
            over.set()
            await clock.advance(500)
            await control.complete("just in time")
            assert (await gateway.end("run_1")).answer == "just in time"


@pytest.mark.behaviour("lemon_gateway.17")
async def test_failed_actions_and_nested_result_meta_stay_as_they_are() -> None:
    """Specification lemon_gateway 1.2: ok=False survives, result_meta is preserved whole."""
    meta = {
        "error_type": "command_exit",
        "exit_code": 3,
        "timeout_ms": 5_000,
        "auto_send_files": [{"path": "/tmp/x", "filename": "x"}],
        "deep": {"kept": [1, {"also": None}]},
    }
    action = Action(
        id="tool_1", kind="command", title="`false`", detail={"result_meta": meta, "args": {}}
    )

    async def script(control: Control) -> None:
        await control.sink.send(EngineAction(control.ref, action, "completed", ok=False))
        await control.complete("done")

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            events = await run_once(gateway)
            payload = events[1].payload
            assert payload.ok is False  # type: ignore[attr-defined]
            assert payload.action == action  # type: ignore[attr-defined]
            record = await gateway.records.get("run_1")
            assert record is not None
            # The end is in the record's summary.
            assert list(record.events) == events[:-1]
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            (state,) = snapshot.actions
            assert (state.ok, state.detail) == (False, {"result_meta": meta, "args": {}})


async def test_odd_values_of_the_executor_become_plain_json() -> None:
    """Specification lemon_gateway 5.1: free-form maps are JSON in both forms."""

    async def script(control: Control) -> None:
        detail: dict[str, object] = {"path": anyio.Path("/x"), "nan": float("nan"), "n": {1: {2}}}
        action = Action(id="t", kind="tool", title="t", detail=detail)
        await control.sink.send(EngineAction(control.ref, action))
        await control.say("bad \ud800 surrogate")
        await control.complete(error={"code": "x", "cause": ValueError("y")}, ok=False)

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            events = await run_once(gateway)
            completed = await gateway.end("run_1")
    detail = events[1].payload.action.detail  # type: ignore[attr-defined]
    assert detail == {"path": "/x", "nan": "nan", "n": {"1": [2]}}
    assert completed.answer == "bad ? surrogate"
    assert completed.error == {"code": "x", "cause": "y"}


async def test_nothing_follows_run_completed() -> None:
    """Specification lemon_gateway 1.3: nothing follows run_completed."""

    async def script(control: Control) -> None:
        await control.complete("first")
        await control.say("more")
        await control.complete("second")

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            events = await run_once(gateway)
            assert types(events) == ["run_started", "engine_completed", "run_completed"]
            await gateway.executor.controls["run_1"].say("even more")
            await settle()
            assert await gateway.events("run_1") == events
            last = events[-1].payload
            assert isinstance(last, RunCompleted)
            assert last.completed.answer == "first"


def test_gateway_errors_do_not_read_as_overflow() -> None:
    """Specification lemon_gateway 3.8: only a full context clears the chat state."""
    assert not is_context_overflow({"code": "lock_timeout", "message": "no lease after 60000 ms"})
