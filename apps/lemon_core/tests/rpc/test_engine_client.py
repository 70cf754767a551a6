"""`GrpcEngineRuntime` against a real server with a scripted gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import grpc
import pytest

from lemon_core.approval_types import InvalidDecision
from lemon_core.bridges import (
    ExecutionRejected,
    RunIdConflict,
    RunNotFound,
    RunSnapshot,
    SteerOutcome,
    StreamItem,
    StreamLost,
    SubmitReceipt,
)
from lemon_core.bus import Bus, run_topic
from lemon_core.clock import SystemClock
from lemon_core.events import Completion, Delta, Event, RunCompleted
from lemon_core.journal import event_seq
from lemon_core.rpc.auth import TokenRow
from lemon_core.rpc.catch_up import CatchUp
from lemon_core.rpc.channel import PeerUnavailable
from lemon_core.rpc.engine_client import GrpcEngineRuntime
from lemon_core.rpc.listen import Listen, TcpListen, UnixListen
from lemon_core.rpc.run_reader import QUEUE_LIMIT
from lemon_core.rpc.serving import ServingOptions
from lemon_core.rpc.status import PermissionDenied
from lemon_core.rpc.wire_json import InvalidMessage
from lemon_core.runs import InvalidCommand, MissingContext, MissingConversationKey
from lemon_core.testing import FakeClock, socket_dir
from lemon_core.tests.rpc import samples
from lemon_core.tests.rpc.doubles import GatewayDouble, Proxy, QuickClock, serving

RUN = "run_1"
EVENTS = 6
"""Events of the script: run_started, four deltas, run_completed."""


def script(run_id: str = RUN) -> list[Event]:
    deltas = [samples.delta(run_id, seq) for seq in range(1, 5)]
    return [samples.started(run_id), *deltas, samples.completed(run_id)]


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    with socket_dir() as path:
        yield path


@asynccontextmanager
async def gateway_and_client(
    folder: Path, *, epoch: str = "epoch_1", bus: Bus | None = None, shared_bus: bool = False
) -> AsyncIterator[tuple[GatewayDouble, GrpcEngineRuntime]]:
    clock, bus = QuickClock(), bus or Bus()
    double = GatewayDouble(clock, epoch, bus.id if shared_bus else "bus_remote")
    listen = UnixListen(folder / "g.sock")
    async with (
        serving(double, listen, clock),
        GrpcEngineRuntime(listen, bus=bus, clock=clock) as client,
    ):
        with anyio.fail_after(20):
            yield double, client


def opened(double: GatewayDouble, run_id: str = RUN, events: int = EVENTS) -> None:
    double.journal.open(run_id, samples.SESSION)
    for event in script(run_id)[:events]:
        double.journal.append(run_id, event)


def summary(items: list[StreamItem]) -> list[object]:
    return [
        (item.type, event_seq(item)) if isinstance(item, Event) else item.last_event_seq
        for item in items
    ]


FULL: list[object] = [
    ("run_started", 1),
    *[("delta", seq) for seq in range(2, 6)],
    ("run_completed", 6),
]

# --- calls ---


async def test_a_command_is_taken_and_its_duplicate_told(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        command = samples.command(RUN)
        assert await client.submit_execution(command) == SubmitReceipt(
            RUN, "accepted", "node_1", "epoch_1"
        )
        assert (await client.submit_execution(command)).status == "duplicate"
        assert double.commands == [command]


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
async def test_a_lost_answer_leads_to_one_run(folder: Path, status: grpc.StatusCode) -> None:
    """Specification lemon_gateway 13.23."""
    async with gateway_and_client(folder) as (double, client):
        double.failures = [status, status]
        receipt = await client.submit_execution(samples.command(RUN))
        assert receipt.status == "duplicate"
        assert double.calls == [f"submit {RUN}"] * 3
        assert len(double.commands) == 1


async def test_an_answer_to_a_question_is_told_or_is_not_known(folder: Path) -> None:
    """Sent again, it may find the question settled by itself: nobody can tell then."""
    async with gateway_and_client(folder) as (double, client):
        double.questions = {"apr_1", "apr_2"}
        assert await client.resolve_approval("apr_1", "approve_once")
        assert not await client.resolve_approval("apr_1", "deny")
        double.failures = [grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(PeerUnavailable, match="perhaps by this very answer"):
            await client.resolve_approval("apr_2", "deny")
        double.failures = [grpc.StatusCode.UNAVAILABLE] * 3
        with pytest.raises(PeerUnavailable):
            await client.resolve_approval("apr_2", "deny")
        assert len(double.calls) == 2 + 2 + 3


async def test_a_decision_that_is_none_is_the_same_error_as_in_one_process(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        double.failures = [InvalidDecision("apr_1", "approve_agent", ("deny",))]
        with pytest.raises(InvalidDecision, match="takes no decision 'approve_agent'"):
            await client.resolve_approval("apr_1", "approve_agent")
        with pytest.raises(InvalidDecision, match="use one of approve_once"):
            await client.resolve_approval("apr_1", "maybe")
        assert double.calls == ["resolve apr_1 approve_agent"]


async def test_a_gateway_that_never_answers_is_a_temporary_refusal(folder: Path) -> None:
    async with GrpcEngineRuntime(
        UnixListen(folder / "nobody.sock"), bus=Bus(), clock=QuickClock()
    ) as client:
        with anyio.fail_after(5):
            with pytest.raises(ExecutionRejected, match="does not answer"):
                await client.submit_execution(samples.command(RUN))
            assert await client.available() is False
            with pytest.raises(PeerUnavailable):
                await client.get_run(RUN)
            with pytest.raises(PeerUnavailable):
                await client.health()
            await client.cancel_by_run_id(RUN)


@pytest.mark.parametrize(
    "refusal",
    [
        RunIdConflict(RUN),
        ExecutionRejected("shutting down"),
        MissingContext(RUN),
        MissingConversationKey(RUN),
        InvalidCommand("meta_json: expected a JSON object"),
    ],
)
async def test_refusals_are_the_same_errors_as_in_one_process(
    folder: Path, refusal: Exception
) -> None:
    async with gateway_and_client(folder) as (double, client):
        double.failures = [refusal]
        with pytest.raises(type(refusal)) as caught:
            await client.submit_execution(samples.command(RUN))
        assert type(caught.value) is type(refusal)
        assert str(caught.value) == str(refusal)
        assert double.calls == [f"submit {RUN}"]


async def test_a_denied_submission_is_permanent(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        double.failures = [PermissionDenied("origin cron is not allowed")]
        with pytest.raises(InvalidCommand, match="permission_denied"):
            await client.submit_execution(samples.command(RUN))


async def test_a_fault_of_the_server_does_not_show_its_text(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        double.failures = [ValueError("the user's secret words")]
        with pytest.raises(Exception, match="ValueError") as caught:
            await client.submit_execution(samples.command(RUN))
        assert "secret" not in str(caught.value)


async def test_a_command_that_no_message_can_hold_is_invalid(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        command = samples.command(RUN)
        for change, error in (
            ({"conversation_key": None}, MissingConversationKey),
            ({"execution_context": None}, MissingContext),
            ({"meta": {"a": object()}}, InvalidMessage),
            ({"prompt": "half a pair: \ud800"}, InvalidMessage),
        ):
            with pytest.raises(error):
                await client.submit_execution(command.model_copy(update=change))
        assert double.calls == []


async def test_a_message_over_the_limit_is_invalid(folder: Path) -> None:
    """Specification lemon_gateway 13.24."""
    clock, listen = QuickClock(), UnixListen(folder / "g.sock")
    double = GatewayDouble(clock)
    async with (
        serving(double, listen, clock, options=ServingOptions(max_message_bytes=20_000)),
        GrpcEngineRuntime(listen, bus=Bus(), clock=clock) as client,
    ):
        with anyio.fail_after(5):
            with pytest.raises(InvalidCommand):
                await client.submit_execution(samples.command(RUN, "x" * 30_000))
            await client.submit_execution(samples.command("run_2"))


async def test_steer_cancel_and_get_run(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        assert await client.get_run(RUN) is None
        opened(double, events=3)
        snapshot = await client.get_run(RUN)
        assert snapshot == double.journal.snapshot(RUN)
        double.failures = [grpc.StatusCode.UNAVAILABLE]
        outcome = await client.steer(RUN, "run_s", "more", "redirect")
        assert outcome == SteerOutcome("run_s", "redirect", True)
        double.failures = [grpc.StatusCode.UNAVAILABLE]
        await client.cancel_by_run_id(RUN, "interrupted")
        assert double.calls == [f"steer {RUN} more"] * 2 + [f"cancel {RUN} interrupted"] * 2
        double.failures = [ValueError("broken")]
        await client.cancel_by_run_id(RUN)
        assert await client.health() == double.report()
        assert await client.available() is True


# --- the stream ---


async def test_a_finished_and_a_live_run_over_one_stream(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        opened(double)
        assert summary([item async for item in client.subscribe(RUN)]) == FULL
        assert summary([item async for item in client.subscribe(RUN, 4)]) == FULL[4:]
        assert summary([item async for item in client.subscribe(RUN, 6)]) == []
        live: list[StreamItem] = []

        async def read() -> None:
            live.extend([item async for item in client.subscribe("run_2")])

        opened(double, "run_2", 2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for event in script("run_2")[2:]:
                double.journal.append("run_2", event)
        assert summary(live) == FULL
        assert len(double.peers) == 1  # one health call: one stream for all of them


async def test_events_arrive_as_they_were_published(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        opened(double)
        items = [item async for item in client.subscribe(RUN)]
        assert items == list(double.journal.replay(RUN) or ())


async def test_an_unknown_run_is_not_found(folder: Path) -> None:
    async with gateway_and_client(folder) as (_, client):
        with pytest.raises(RunNotFound):
            [item async for item in client.subscribe("unknown")]


async def test_a_run_of_history_ends_with_its_terminal_snapshot(folder: Path) -> None:
    over = RunSnapshot(
        RUN, samples.SESSION, "terminal", "epoch_1", terminal=Completion(ok=False, error="run_lost")
    )
    bus = Bus()
    async with gateway_and_client(folder, bus=bus) as (double, client):
        double.past_items[RUN] = (over,)
        with bus.subscribe(run_topic(RUN)) as published:
            assert [item async for item in client.subscribe(RUN)] == [over]
            (event,) = await published.receive_batch()
        assert event.type == "run_completed"
        assert event.payload == RunCompleted(completed=Completion(ok=False, error="run_lost"))


async def test_two_subscribers_of_one_run_each_get_all_of_it(folder: Path) -> None:
    async with gateway_and_client(folder) as (double, client):
        opened(double, events=3)
        results: dict[str, list[StreamItem]] = {}

        async def read(name: str, after: int) -> None:
            results[name] = [item async for item in client.subscribe(RUN, after)]

        async with (
            anyio.create_task_group() as tasks,
            aclosing(client.subscribe(RUN)) as first,
        ):
            head = [await anext(first)]
            tasks.start_soon(read, "late", 0)
            tasks.start_soon(read, "later", 2)
            head.append(await anext(first))
            await anyio.wait_all_tasks_blocked()
            for event in script()[3:]:
                double.journal.append(RUN, event)
            head.extend([item async for item in first])
        assert summary(head) == FULL
        assert summary(results["late"]) == FULL
        assert summary(results["later"]) == FULL[2:]


async def test_a_foreign_run_is_refused(folder: Path) -> None:
    """Specification lemon_gateway 13.24."""
    async with gateway_and_client(folder) as (double, client):
        opened(double)
        double.foreign_runs.add(RUN)
        with pytest.raises(StreamLost, match="another peer"):
            [item async for item in client.subscribe(RUN)]


@pytest.mark.parametrize("shared_bus", [True, False])
@pytest.mark.behaviour("lemon_router.40")
@pytest.mark.parametrize("cut_after", range(EVENTS + 1))
async def test_a_cut_at_any_event_loses_and_repeats_nothing(
    folder: Path, cut_after: int, shared_bus: bool
) -> None:
    """Specification lemon_gateway 13.21. Half of what is left happens while the client is away."""
    clock, bus = QuickClock(), Bus()
    double = GatewayDouble(clock, bus_id=bus.id if shared_bus else "bus_remote")
    listen = UnixListen(folder / "g.sock")
    proxy = Proxy(folder / "p.sock", listen.path)
    seen = Seen()
    async with (
        serving(double, listen, clock),
        proxy.running(),
        GrpcEngineRuntime(proxy.listen, bus=bus, clock=clock) as client,
    ):
        with anyio.fail_after(20), bus.subscribe(run_topic(RUN)) as local:
            opened(double, events=0)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(seen.read, client, RUN)
                await double.subscribed.wait()
                for event in script()[:cut_after]:
                    double.journal.append(RUN, event)
                await seen.wait(cut_after)
                proxy.cut()
                rest = script()[cut_after:]
                half = len(rest) // 2
                for event in rest[:half]:
                    double.journal.append(RUN, event)
                await seen.wait(cut_after + half)
                for event in rest[half:]:
                    double.journal.append(RUN, event)
            published = [] if shared_bus else await local.receive_batch()
    assert summary(seen.items) == FULL
    assert published == ([] if shared_bus else seen.items)


class Seen:
    """What a reader has had so far."""

    def __init__(self) -> None:
        self.items: list[StreamItem] = []
        self._more = anyio.Event()

    async def read(self, client: GrpcEngineRuntime, run_id: str) -> None:
        async for item in client.subscribe(run_id):
            self.items.append(item)
            self._more.set()

    async def wait(self, count: int) -> None:
        while len(self.items) < count:
            self._more = anyio.Event()
            await self._more.wait()


async def test_a_new_epoch_leads_to_a_snapshot_and_then_to_what_is_new(folder: Path) -> None:
    """Specification lemon_gateway 13.22: a restart is never a silent loss."""
    clock, bus, listen = QuickClock(), Bus(), UnixListen(folder / "g.sock")
    items: list[StreamItem] = []
    with anyio.fail_after(20), bus.subscribe(run_topic(RUN)) as local:
        async with (
            GrpcEngineRuntime(listen, bus=bus, clock=clock) as client,
            aclosing(client.subscribe(RUN)) as stream,
        ):
            before = GatewayDouble(clock, "epoch_1")
            async with serving(before, listen, clock):
                opened(before, events=3)
                items.extend([await anext(stream) for _ in range(3)])
            after = GatewayDouble(clock, "epoch_2")
            opened(after, events=5)
            async with serving(after, listen, clock):
                items.append(await anext(stream))
                after.journal.append(RUN, samples.completed(RUN))
                items.extend([item async for item in stream])
        published = await local.receive_batch()
    assert summary(items) == [*FULL[:3], 5, ("run_completed", 6)]
    snapshot = items[3]
    assert isinstance(snapshot, RunSnapshot)
    assert snapshot.accumulated_text == "w1 w2 w3 w4 "
    texts = [event.payload.text for event in published if hasattr(event.payload, "text")]
    assert texts == ["w1 ", "w2 ", "w3 w4 "]
    assert [event.type for event in published][-1] == "run_completed"


async def test_a_restart_that_forgot_the_run_says_so(folder: Path) -> None:
    """Specification lemon_gateway 13.22."""
    clock, listen = QuickClock(), UnixListen(folder / "g.sock")
    with anyio.fail_after(20):
        async with (
            GrpcEngineRuntime(listen, bus=Bus(), clock=clock) as client,
            aclosing(client.subscribe(RUN)) as stream,
        ):
            before = GatewayDouble(clock, "epoch_1")
            async with serving(before, listen, clock):
                opened(before, events=2)
                for _ in range(2):
                    await anext(stream)
            async with serving(GatewayDouble(clock, "epoch_2"), listen, clock):
                with pytest.raises(RunNotFound):
                    await anext(stream)


async def test_silence_counts_as_a_lost_connection(folder: Path) -> None:
    """Specification lemon_gateway 5.3: 45 s without a frame."""
    clock, listen = FakeClock(), UnixListen(folder / "g.sock")
    silent = GatewayDouble(SystemClock())
    options = ServingOptions(heartbeat_ms=10_000_000)
    async with (
        serving(silent, listen, SystemClock(), options=options),
        GrpcEngineRuntime(listen, bus=Bus(), clock=clock) as client,
    ):
        with anyio.fail_after(10):
            opened(silent, events=1)
            async with aclosing(client.subscribe(RUN)) as stream:
                await anext(stream)
                assert len(silent.peers) == 1
                await clock.wait_for_sleepers()
                await clock.advance(45_000)
                await clock.wait_for_sleepers()
                await clock.advance(100)
                for event in script()[1:]:
                    silent.journal.append(RUN, event)
                assert summary([item async for item in stream]) == FULL[1:]
            assert len(silent.peers) == 2


async def test_a_stalled_subscriber_is_let_go_and_gets_everything_later(folder: Path) -> None:
    """Specification lemon_gateway 13.25: nothing is queued without bound, nothing is lost."""
    beats, listen = FakeClock(), UnixListen(folder / "g.sock")
    bus = Bus()
    double = GatewayDouble(beats, bus_id=bus.id)
    proxy = Proxy(folder / "p.sock", listen.path)
    seen = Seen()
    with anyio.fail_after(30):
        async with (
            serving(double, listen, beats),
            proxy.running(),
            GrpcEngineRuntime(proxy.listen, bus=bus, clock=QuickClock()) as client,
            anyio.create_task_group() as tasks,
        ):
            opened(double, events=1)
            tasks.start_soon(seen.read, client, RUN)
            await seen.wait(1)
            proxy.flowing.clear()
            big = "x" * 4_000_000  # more than all windows and buffers on the way hold
            double.journal.append(RUN, samples.delta(RUN, 1, big))
            await anyio.wait_all_tasks_blocked()
            for seq in range(2, 2_500):
                double.journal.append(RUN, samples.delta(RUN, seq))
            for _ in range(2):
                await beats.wait_for_sleepers()
                await beats.advance(15_000)
            while double.journal._followers:
                await anyio.wait_all_tasks_blocked()
            proxy.flowing.set()
            await seen.wait(2_000)
            double.journal.append(RUN, samples.completed(RUN))
    events = [item for item in seen.items if isinstance(item, Event)]
    text = "".join(event.payload.text for event in events if isinstance(event.payload, Delta))
    assert text == big + "".join(f"w{seq} " for seq in range(2, 2_500))


async def test_a_reader_that_takes_its_time_misses_nothing(folder: Path) -> None:
    """The client's own queue is bounded as well."""
    async with gateway_and_client(folder, shared_bus=True) as (double, client):
        double.journal.open(RUN, samples.SESSION)
        count = QUEUE_LIMIT + 500
        async with aclosing(client.subscribe(RUN)) as stream:
            double.journal.append(RUN, samples.delta(RUN, 1))
            items = [await anext(stream)]
            for seq in range(2, count + 1):
                double.journal.append(RUN, samples.delta(RUN, seq))
                if seq % 200 == 0:
                    await anyio.wait_all_tasks_blocked()
            double.journal.append(RUN, samples.completed(RUN))
            items.extend([item async for item in stream])
    known = CatchUp(RUN, FakeClock())
    events = [event for item in items for event in known.events(item)]
    text = "".join(event.payload.text for event in events if isinstance(event.payload, Delta))
    assert text == "".join(f"w{seq} " for seq in range(1, count + 1))


# --- TCP ---


TOKENS = (TokenRow("router_1", "s3cret"),)


@pytest.fixture(params=["unix", "tcp"])
def listen(request: pytest.FixtureRequest, folder: Path) -> Listen:
    return UnixListen(folder / "g.sock") if request.param == "unix" else TcpListen("127.0.0.1", 0)


async def test_both_transports_carry_the_same_run(listen: Listen) -> None:
    clock = QuickClock()
    double = GatewayDouble(clock)
    tokens = () if isinstance(listen, UnixListen) else TOKENS
    async with (
        serving(double, listen, clock, tokens=tokens) as server,
        GrpcEngineRuntime(server.address, bus=Bus(), clock=clock, token="s3cret") as client,
    ):
        with anyio.fail_after(10):
            await client.submit_execution(samples.command(RUN))
            opened(double)
            assert summary([item async for item in client.subscribe(RUN)]) == FULL
    assert double.peers[0].id == ("operator" if isinstance(listen, UnixListen) else "router_1")


async def test_a_wrong_token_ends_the_subscription(folder: Path) -> None:
    clock = QuickClock()
    double = GatewayDouble(clock)
    async with serving(double, TcpListen("127.0.0.1", 0), clock, tokens=TOKENS) as server:
        for token in ("wrong", None):
            async with GrpcEngineRuntime(
                server.address, bus=Bus(), clock=clock, token=token
            ) as client:
                with anyio.fail_after(10):
                    with pytest.raises(StreamLost, match="token"):
                        [item async for item in client.subscribe(RUN)]
                    assert await client.available() is False
    assert double.calls == []
