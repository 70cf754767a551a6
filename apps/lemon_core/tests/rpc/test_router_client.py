"""`GrpcRouterBridge`, `RouterClient` and the running probe against a scripted router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import grpc
import pytest

from lemon_core.approval_types import InvalidDecision
from lemon_core.bridges import (
    ROUTER,
    RouterBridge,
    RunNotFound,
    SteerOutcome,
    StreamLost,
    SubmitResult,
)
from lemon_core.capabilities import Capabilities
from lemon_core.clock import Clock, SystemClock
from lemon_core.errors import LemonError
from lemon_core.events import Completion, Delta, Event, PendingApproval, RunCompleted
from lemon_core.journal import event_seq
from lemon_core.messages import InboundMessage
from lemon_core.paths import PathSettings
from lemon_core.router_views import RunInfo, SessionInfo, SessionView
from lemon_core.rpc.channel import PeerUnavailable
from lemon_core.rpc.listen import ListenError, TcpListen, UnixListen
from lemon_core.rpc.router_client import GrpcRouterBridge, RouterClient
from lemon_core.rpc.running import running, wait_healthy
from lemon_core.rpc.status import PermissionDenied
from lemon_core.runs import InvalidCommand, RunRequest
from lemon_core.state_lock import hold_state_lock
from lemon_core.store.wrappers import SessionSettings
from lemon_core.testing import FakeClock, socket_dir
from lemon_core.tests.rpc import samples
from lemon_core.tests.rpc.doubles import Proxy, QuickClock, RouterDouble, serving

RUN = "run_1"
REQUEST = RunRequest(run_id=RUN, prompt="hello", origin="node")
RUN_INFO = RunInfo(
    RUN, samples.SESSION, "completed", "default", "node", 1, 2, completion=Completion(ok=True)
)


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    with socket_dir() as path:
        yield path


@asynccontextmanager
async def router_and_client(
    folder: Path, clock: Clock | None = None
) -> AsyncIterator[tuple[RouterDouble, RouterClient]]:
    clock, listen = clock or QuickClock(), UnixListen(folder / "r.sock")
    double = RouterDouble(clock)
    async with serving(double, listen, clock), RouterClient(listen, clock=clock) as client:
        with anyio.fail_after(10):
            yield double, client


# --- submitting ---


async def test_a_request_is_taken_as_it_is(folder: Path) -> None:
    async with router_and_client(folder) as (double, client):
        assert await client.submit_run(REQUEST) == SubmitResult("accepted", RUN)
        assert (await client.submit_run(REQUEST)).duplicate
        assert double.requests == [REQUEST, REQUEST]
        result = await client.submit_run(RunRequest(prompt="no id"))
        assert result.run_id is not None
        assert result.run_id.startswith("run_")


async def test_an_unknown_outcome_is_sent_once_more_and_then_told(folder: Path) -> None:
    """Specification lemon_router 8."""
    async with router_and_client(folder) as (double, client):
        double.failures = [grpc.StatusCode.UNAVAILABLE]
        assert await client.submit_run(REQUEST) == SubmitResult("accepted", RUN, duplicate=True)
        double.failures = [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE]
        result = await client.submit_run(REQUEST)
        assert (result.status, result.run_id) == ("outcome_unknown", RUN)
        assert len(double.requests) == 4


async def test_without_a_connection_nothing_was_sent(folder: Path) -> None:
    async with RouterClient(UnixListen(folder / "r.sock"), clock=QuickClock()) as client:
        with anyio.fail_after(5):
            result = await client.submit_run(REQUEST)
    assert (result.status, result.run_id) == ("unavailable", RUN)


@pytest.mark.parametrize(
    "refusal", [InvalidCommand("tool_policy_json: no"), PermissionDenied("origin cron")]
)
async def test_a_refusal_is_an_answer(folder: Path, refusal: LemonError) -> None:
    async with router_and_client(folder) as (double, client):
        double.failures = [refusal]
        assert await client.submit_run(REQUEST) == SubmitResult(
            "rejected", RUN, f"{refusal.code}: {refusal}"
        )


async def test_a_request_that_no_message_can_hold_is_rejected(folder: Path) -> None:
    async with router_and_client(folder) as (double, client):
        for request in (
            REQUEST.model_copy(update={"meta": {"a": object()}}),
            REQUEST.model_copy(update={"prompt": "\ud800"}),
        ):
            assert (await client.submit_run(request)).status == "rejected"
        assert double.requests == []


# --- the other calls ---


async def test_every_call_of_the_port(folder: Path) -> None:
    async with router_and_client(folder) as (double, client):
        double.active[samples.SESSION] = RUN
        double.runs.append(RUN_INFO)
        assert await client.active_run(samples.SESSION) == RUN
        assert await client.active_run("other") is None
        assert await client.session_busy(samples.SESSION) is True
        assert await client.session_busy("other") is False
        assert await client.list_active_sessions() == [
            {"session_key": samples.SESSION, "run_id": RUN}
        ]
        assert await client.counts() == {"active": 1, "queued": 2, "completed_today": 3}
        assert await client.admission(RUN) == "completed"
        assert await client.admission("unknown") is None
        await client.abort_session(samples.SESSION, "new_session")
        await client.abort_run(RUN)
        await client.keep_run_alive(RUN, "continue")
        await client.keep_run_alive(RUN, "cancel")
        assert double.calls == [
            f"abort_session {samples.SESSION} new_session",
            f"abort_run {RUN} user_requested",
            f"keep_run_alive {RUN} KEEP_ALIVE_DECISION_CONTINUE",
            f"keep_run_alive {RUN} KEEP_ALIVE_DECISION_CANCEL",
        ]
        assert (await client.health()).app == "lemon_router"


async def test_sessions_and_runs(folder: Path) -> None:
    async with router_and_client(folder) as (double, client):
        view = SessionView(
            SessionInfo(samples.SESSION, "default", run_count=1), model="m", runs=(RUN_INFO,)
        )
        double.sessions.append(view)
        double.runs.append(RUN_INFO)
        assert await client.list_sessions(active_only=True, limit=5) == [view.info]
        assert await client.get_session(samples.SESSION) == view
        assert await client.get_session("unknown") is None
        assert await client.list_runs(samples.SESSION, ["completed"]) == [RUN_INFO]
        assert await client.get_run(RUN) == RUN_INFO
        assert await client.get_run("unknown") is None
        outcome = await client.steer_run(RUN, "more", "steer", "run_s")
        assert outcome == SteerOutcome("run_s", "steer", False, "finished")
        assert double.calls == [
            "list_sessions True 5",
            f"list_runs {samples.SESSION} ['completed']",
            f"steer_run {RUN} more",
        ]


async def test_a_channel_s_message_arrives_as_it_is(folder: Path) -> None:
    """Specification lemon_router 8."""
    message = InboundMessage.model_validate(
        {"channel_id": "telegram", "account_id": "bot", "peer": {"kind": "dm", "id": "5"}}
    )
    async with router_and_client(folder) as (double, client):
        assert await client.handle_inbound(message) == SubmitResult("accepted", "run_in")
        double.failures = [grpc.StatusCode.UNAVAILABLE]
        assert (await client.handle_inbound(message)).duplicate
        assert double.inbound == [message] * 3
        bad = message.model_copy(update={"raw": object()})
        assert (await client.handle_inbound(bad)).status == "rejected"


async def test_sessions_are_changed(folder: Path) -> None:
    async with router_and_client(folder) as (double, client):
        await client.reset_session(samples.SESSION)
        assert double.calls == [f"reset_session {samples.SESSION}"]
        assert await client.patch_session(samples.SESSION) == SessionSettings("m", "low")
        changed = await client.patch_session(samples.SESSION, model=None, thinking_level="high")
        assert changed == SessionSettings(None, "high")


async def test_questions_are_listed_and_answered_once(folder: Path) -> None:
    async with router_and_client(folder) as (double, client):
        double.questions.append(PendingApproval(id="a1", tool="bash", action={"cmd": "ls"}))
        assert await client.list_approvals() == double.questions
        assert await client.resolve_approval("a1", "approve_once") is True
        assert await client.resolve_approval("a1", "deny") is False
        double.failures = [InvalidDecision("a1", "yes", ("deny",))]
        with pytest.raises(InvalidCommand):
            await client.resolve_approval("a1", "yes")


async def test_calls_without_an_answer_raise_and_the_facade_softens_them(folder: Path) -> None:
    """Specification lemon_core 5.1."""
    capabilities = Capabilities()
    async with GrpcRouterBridge(UnixListen(folder / "r.sock"), clock=QuickClock()) as bridge:
        capabilities.register(ROUTER, bridge)
        facade = RouterBridge(capabilities)
        with anyio.fail_after(5):
            with pytest.raises(PeerUnavailable):
                await bridge.abort_run(RUN)
            assert await facade.abort_run(RUN) == "error"
            assert await facade.active_run(samples.SESSION) is None
            assert (await facade.submit_run(REQUEST)).status == "unavailable"


# --- watching ---


def write(double: RouterDouble, *events: Event) -> None:
    double.journal.open(RUN, samples.SESSION)
    for event in events:
        double.journal.append(RUN, event)


async def test_watch_gives_the_events_of_the_router(folder: Path) -> None:
    async with router_and_client(folder) as (double, client):
        relayed = samples.delta(RUN, 1)
        relayed = Event(
            relayed.type, relayed.ts_ms, relayed.payload, {**relayed.meta, "engine_event_seq": 7}
        )
        write(double, samples.started(RUN), relayed, samples.completed(RUN))
        events = [event async for event in client.watch(RUN)]
        assert events == list(double.journal.replay(RUN) or ())
        assert [event_seq(event) for event in events] == [1, 2, 3]
        assert events[1].meta["engine_event_seq"] == 7
        with pytest.raises(RunNotFound):
            [event async for event in client.watch("unknown")]


async def test_watch_turns_a_snapshot_into_what_is_new(folder: Path) -> None:
    clock, listen = QuickClock(), UnixListen(folder / "r.sock")
    events: list[Event] = []
    with anyio.fail_after(10):
        async with (
            RouterClient(listen, clock=clock) as client,
            aclosing(client.watch(RUN)) as watched,
        ):
            before = RouterDouble(clock, "epoch_1")
            async with serving(before, listen, clock):
                write(before, samples.started(RUN), samples.delta(RUN, 1))
                events.extend([await anext(watched) for _ in range(2)])
            after = RouterDouble(clock, "epoch_2")
            write(after, *[samples.delta(RUN, n) for n in (1, 2, 3)], samples.completed(RUN))
            async with serving(after, listen, clock):
                events.extend([event async for event in watched])
    text = "".join(event.payload.text for event in events if isinstance(event.payload, Delta))
    assert text == "w1 w2 w3 "
    assert [event.type for event in events] == ["run_started", "delta", "delta", "run_completed"]
    assert isinstance(events[-1].payload, RunCompleted)


async def test_watch_ends_when_the_router_stays_away(folder: Path) -> None:
    clock = FakeClock()
    async with RouterClient(UnixListen(folder / "r.sock"), clock=clock) as client:
        failures: list[StreamLost] = []

        async def watch() -> None:
            try:
                [event async for event in client.watch(RUN)]
            except StreamLost as exc:
                failures.append(exc)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                for _ in range(40):
                    await clock.wait_for_sleepers()
                    if failures:
                        break
                    await clock.advance(2_000)
        assert failures
        assert "lost" in failures[0].reason
        assert clock.monotonic_ms() - 1_000 >= 30_000


async def test_a_cut_while_watching_repeats_nothing(folder: Path) -> None:
    clock, listen = QuickClock(), UnixListen(folder / "r.sock")
    double = RouterDouble(clock)
    proxy = Proxy(folder / "p.sock", listen.path)
    async with (
        serving(double, listen, clock),
        proxy.running(),
        RouterClient(proxy.listen, clock=clock) as client,
    ):
        with anyio.fail_after(10):
            write(double, samples.started(RUN))
            async with aclosing(client.watch(RUN)) as watched:
                seqs = [event_seq(await anext(watched))]
                for number in range(1, 6):
                    proxy.cut()
                    write(double, samples.delta(RUN, number))
                    seqs.append(event_seq(await anext(watched)))
                write(double, samples.completed(RUN))
                seqs.extend([event_seq(event) async for event in watched])
    assert seqs == [1, 2, 3, 4, 5, 6, 7]
    assert proxy.connections >= 5


async def test_no_task_is_left_behind(folder: Path) -> None:
    before = asyncio.all_tasks()
    async with router_and_client(folder) as (double, client):
        write(double, samples.started(RUN))
        async with aclosing(client.watch(RUN)) as watched:
            await anext(watched)
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() if "lemon_core" in repr(task)} <= before


def test_a_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ListenError, match="clear"):
        RouterClient(TcpListen("192.0.2.1", 4100), clock=SystemClock(), token="s3cret")


# --- is a server running? ---


async def test_running_needs_the_lock_and_an_answer(folder: Path) -> None:
    """Specification lemon_core 13: lock held and RouterService.GetHealth answering."""
    clock, paths = SystemClock(), PathSettings(folder)
    with anyio.fail_after(10):
        assert await running(paths, clock) is None
        async with hold_state_lock(paths.runtime_lock, "server", clock) as lock:
            assert await running(paths, clock) is None
            listen = UnixListen(lock.claim_socket(paths.router_socket))
            async with serving(RouterDouble(clock), listen, clock):
                assert await running(paths, clock) == lock.holder
            assert await running(paths, clock) is None
        assert await running(paths, clock) is None


async def test_a_start_is_waited_for_and_not_for_ever(folder: Path) -> None:
    """Specification lemon_core 13: a look every 500 ms, for 30 s."""
    clock, real, paths = FakeClock(), SystemClock(), PathSettings(folder)
    found: list[object] = []
    told = anyio.Event()

    async def wait() -> None:
        found.append(await wait_healthy(paths, clock))
        told.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            for _ in range(60):
                await clock.wait_for_sleepers()
                assert found == []
                await clock.advance(500)
        assert found == [None]
        told = anyio.Event()
        async with (
            anyio.create_task_group() as tasks,
            hold_state_lock(paths.runtime_lock, "server", real) as lock,
        ):
            tasks.start_soon(wait)
            await clock.wait_for_sleepers()
            listen = UnixListen(lock.claim_socket(paths.router_socket))
            async with serving(RouterDouble(real), listen, real):
                await clock.advance(500)
                await told.wait()
        assert found == [None, lock.holder]
