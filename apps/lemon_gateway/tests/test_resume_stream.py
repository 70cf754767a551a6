"""Connections that break, journals that overflow, and gateways that restart."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from lemon_core.bridges import EngineRuntime, RunNotFound, RunSnapshot, StreamItem
from lemon_core.bus import Bus, run_topic
from lemon_core.clock import SystemClock
from lemon_core.events import Event
from lemon_core.journal import JournalLimits
from lemon_core.rpc.engine_client import GrpcEngineRuntime
from lemon_core.rpc.serving import UnixListen
from lemon_core.store import Store, StoreSettings, open_store
from lemon_core.testing import FakeClock, socket_dir
from lemon_gateway.config import GatewaySettings
from lemon_gateway.requests import Action, EngineAction
from lemon_gateway.tests.fakes import (
    NOW_MS,
    Control,
    ScriptedExecutor,
    answer_hello,
    command,
    running_gateway,
)
from lemon_gateway.tests.forms import serving_at, wired

STEPS = 7
EVENTS = STEPS + 2
"""`run_started`, one event per step, `run_completed`; the last step gives `engine_completed`."""


async def step(control: Control, number: int) -> None:
    """The executor's part of a run, one event at a time."""
    match number:
        case 0:
            await control.started("sess_1")
        case 3:
            action = Action(id="t", kind="tool", title="t")
            await control.sink.send(EngineAction(control.ref, action, "completed", ok=False))
        case 6:
            await control.complete(token="sess_1")
        case _:
            await control.say(f"piece {number} ")


class Watcher:
    """What a subscriber has seen so far."""

    def __init__(self) -> None:
        self.items: list[StreamItem] = []
        self.over = False
        self._moved = anyio.Event()

    async def watch(self, port: EngineRuntime, run_id: str) -> None:
        async with aclosing(port.subscribe(run_id)) as items:
            async for item in items:
                self.items.append(item)
                self._tell()
        self.over = True
        self._tell()

    async def seen(self, count: int) -> None:
        while len(self.items) < count:
            await self._moved.wait()

    def _tell(self) -> None:
        moved, self._moved = self._moved, anyio.Event()
        moved.set()


@pytest.mark.behaviour("lemon_gateway.21")
@pytest.mark.parametrize("position", range(1, EVENTS))
async def test_a_connection_cut_at_any_event_loses_and_repeats_nothing(position: int) -> None:
    """Specification lemon_gateway 5.3: the client's bus has the same event list."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway, wired(gateway) as (client, bus, wire):
            watcher, told = Watcher(), []
            await client.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            with bus.subscribe(run_topic("run_1")) as topic:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(watcher.watch, client, "run_1")
                    await watcher.seen(1)
                    for number in range(STEPS):
                        if len(watcher.items) == position:
                            await wire.cut()
                        await step(control, number)
                        if number < STEPS - 1:
                            await watcher.seen(number + 2)
                        elif position == EVENTS - 1:
                            await wire.cut()
                expected = await gateway.events("run_1")
                told = [await anext(topic) for _ in expected]
            assert watcher.items == expected
            assert told == expected
            assert len(expected) == EVENTS
            assert wire.connections >= 2


@pytest.mark.behaviour("lemon_gateway.21")
async def test_events_of_the_time_without_connection_come_afterwards() -> None:
    """Specification lemon_gateway 5.3: resubscribes from the last republished event."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway, wired(gateway) as (client, _, wire):
            watcher = Watcher()
            await client.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watcher.watch, client, "run_1")
                await watcher.seen(1)
                await wire.cut()
                for number in range(STEPS):
                    await step(control, number)
            assert watcher.items == await gateway.events("run_1")


@pytest.mark.behaviour("lemon_gateway.23")
async def test_a_submission_whose_answer_is_lost_runs_once() -> None:
    """Specification lemon_gateway 5.3: the client re-sends the same run_id; dedup makes it safe."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway, wired(gateway) as (client, _, wire):
            assert await client.available()
            taken, go_on = anyio.Event(), anyio.Event()
            submit = gateway.runtime.submit

            async def held_back(*args: object, **kwargs: object) -> object:
                receipt = await submit(*args, **kwargs)  # type: ignore[arg-type]
                if not taken.is_set():
                    # Accepted, and the connection goes before the answer is on its way.
                    taken.set()
                    await go_on.wait()
                return receipt

            gateway.runtime.submit = held_back  # type: ignore[method-assign,assignment]
            statuses: list[str] = []

            async def call() -> None:
                statuses.append((await client.submit_execution(command("run_1"))).status)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await taken.wait()
                await wire.cut()
                go_on.set()
            assert statuses == ["duplicate"]
            assert gateway.executor.order == ["run_1"]


SMALL = GatewaySettings(node_id="node-1", journal=JournalLimits(max_events=3))


@pytest.mark.behaviour("lemon_gateway.22")
@pytest.mark.parametrize("remote", [False, True])
async def test_an_overflowed_journal_gives_a_snapshot_and_then_events(remote: bool) -> None:
    """Specification lemon_gateway 5.3: a snapshot, then events after its last_event_seq."""
    with anyio.fail_after(5):
        async with (
            running_gateway(settings=SMALL) as gateway,
            wired(gateway) as (client, bus, _),
        ):
            port: EngineRuntime = client if remote else gateway.runtime
            await port.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            for number in range(STEPS - 1):
                await step(control, number)
            with bus.subscribe(run_topic("run_1")) as topic:
                watcher = Watcher()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(watcher.watch, port, "run_1")
                    await watcher.seen(1)
                    await step(control, STEPS - 1)
                snapshot, *rest = watcher.items
                assert isinstance(snapshot, RunSnapshot)
                assert snapshot.stream_epoch == gateway.runtime.epoch
                seqs = [item.meta["event_seq"] for item in rest if isinstance(item, Event)]
                assert seqs == list(range(snapshot.last_event_seq + 1, EVENTS + 1))
                text = snapshot.accumulated_text + "".join(
                    item.payload.text  # type: ignore[attr-defined]
                    for item in rest
                    if isinstance(item, Event) and item.type == "delta"
                )
                assert text == "piece 1 piece 2 piece 4 piece 5 "
                if remote:
                    told: list[Event] = []
                    while not told or told[-1].type != "run_completed":
                        told.append(await anext(topic))
                    pieces = [e.payload.text for e in told if e.type == "delta"]  # type: ignore[attr-defined]
                    assert "".join(pieces) == "piece 1 piece 2 piece 4 piece 5 "


async def begin_and_die(store: Store, clock: FakeClock, run_id: str) -> None:
    """What a killed process leaves behind: a begin mark and nothing else."""
    async with running_gateway(clock=clock, store=store) as gateway:
        await gateway.records.begin(run_id, command(run_id).digest())


@pytest.mark.behaviour("lemon_gateway.22")
async def test_a_restarted_gateway_answers_with_a_snapshot_or_not_found() -> None:
    """Specification lemon_gateway 5.3: another epoch leads to a snapshot or not_found."""
    clock = FakeClock(NOW_MS)
    with anyio.fail_after(5), socket_dir() as folder:
        listen = UnixListen(folder / "gateway.sock")
        async with open_store(StoreSettings("memory"), clock) as store:
            await begin_and_die(store, clock, "run_lost")
            bus = Bus()
            async with GrpcEngineRuntime(listen, bus=bus, clock=SystemClock()) as client:
                live, done = Watcher(), Watcher()
                async with anyio.create_task_group() as tasks:
                    first = running_gateway(clock=clock, store=store)
                    async with first as gateway, serving_at(gateway, listen):
                        await client.submit_execution(command("run_1"))
                        control = await gateway.executor.run("run_1")
                        await control.say("half")
                        tasks.start_soon(live.watch, client, "run_1")
                        await live.seen(2)
                        epoch = gateway.runtime.epoch
                    second = running_gateway(clock=clock, store=store)
                    async with second as gateway, serving_at(gateway, listen):
                        assert gateway.runtime.epoch != epoch
                        while not live.over:
                            await live._moved.wait()
                        await done.watch(client, "run_lost")
                        with pytest.raises(RunNotFound):
                            await Watcher().watch(client, "run_unknown")
    last = live.items[-1]
    assert isinstance(last, Event | RunSnapshot)
    ended = last.terminal if isinstance(last, RunSnapshot) else last.payload.completed  # type: ignore[attr-defined]
    assert ended is not None
    assert (ended.error, ended.answer) == ("gateway_shutdown", "half")
    (lost,) = done.items
    assert isinstance(lost, RunSnapshot)
    assert lost.terminal is not None
    assert lost.terminal.error == "run_lost"


@pytest.mark.behaviour("lemon_gateway.22")
async def test_a_run_dropped_under_a_slow_reader_is_not_silently_shorter() -> None:
    """Specification lemon_gateway 5.3: never silent loss."""
    settings = GatewaySettings(node_id="n", journal=JournalLimits(total_max_bytes=20_000))
    executor = ScriptedExecutor(answer_hello)
    with anyio.fail_after(5):
        async with running_gateway(executor, settings=settings) as gateway:
            for number in range(20):
                await gateway.runtime.submit_execution(command(f"run_{number}"))
                await gateway.end(f"run_{number}")
            assert gateway.runtime.journal.total_bytes <= 20_000
            assert not gateway.runtime.journal.known("run_0")
            items = [item async for item in gateway.runtime.subscribe("run_0", after_seq=3)]
            (snapshot,) = items
            assert isinstance(snapshot, RunSnapshot)
            assert snapshot.accumulated_text == "hello"
