"""The bus (specification lemon_core 4.3)."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from lemon_core.bus import BACKLOG_LIMIT, Bus, Subscription, run_topic
from lemon_core.events import (
    Completion,
    Event,
    EventPayloadError,
    RunAbsorbed,
    RunCompleted,
    RunFailed,
)

pytestmark = pytest.mark.anyio

TOPIC = "run:r"


def event(number: int) -> Event:
    """A numbered event of an unregistered type."""
    return Event("note", number, {"n": number}, {})


async def take(subscription: Subscription, count: int) -> list[int]:
    with anyio.fail_after(5):
        return [(await anext(subscription)).ts_ms for _ in range(count)]


@pytest.mark.behaviour("lemon_core.9")
async def test_each_subscription_sees_all_events_in_order_from_its_start() -> None:
    bus = Bus()
    bus.publish(TOPIC, event(0))
    with bus.subscribe(TOPIC) as first, bus.subscribe(TOPIC) as second:
        for number in range(1, 4):
            bus.publish(TOPIC, event(number))
        assert await take(first, 3) == [1, 2, 3]
        assert await take(second, 3) == [1, 2, 3]
    assert not bus.has_subscribers(TOPIC)


@pytest.mark.behaviour("lemon_core.9")
async def test_publish_from_skips_its_own_subscription() -> None:
    bus = Bus()
    with bus.subscribe(TOPIC) as own, bus.subscribe(TOPIC) as other:
        bus.publish_from(own, TOPIC, event(1))
        bus.publish(TOPIC, event(2))
        assert await take(own, 1) == [2]
        assert await take(other, 2) == [1, 2]


@pytest.mark.behaviour("lemon_core.9")
async def test_a_slow_or_failed_subscriber_affects_no_one() -> None:
    backlogs: list[tuple[str, int]] = []
    bus = Bus(on_backlog=lambda topic, waiting: backlogs.append((topic, waiting)))
    with bus.subscribe(TOPIC) as slow, bus.subscribe(TOPIC) as quick:

        async def fail() -> None:
            with bus.subscribe(TOPIC) as doomed:
                bus.publish(TOPIC, event(0))
                await anext(doomed)
                raise RuntimeError("subscriber broke")

        with pytest.raises(RuntimeError, match="subscriber broke"):
            await fail()
        assert await take(quick, 1) == [0]
        for number in range(BACKLOG_LIMIT + 5):
            bus.publish(TOPIC, event(number))
            assert await take(quick, 1) == [number]
        assert backlogs == [(TOPIC, BACKLOG_LIMIT)]
        assert len(await slow.receive_batch()) == 256


@pytest.mark.behaviour("lemon_core.9")
async def test_publishing_from_threads_keeps_each_publishers_order() -> None:
    bus = Bus()
    start = threading.Barrier(2)

    def publish(base: int) -> None:
        start.wait(5)
        for number in range(base, base + 500):
            bus.publish(TOPIC, event(number))

    with bus.subscribe(TOPIC) as subscription:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, publish, 0)
            tasks.start_soon(anyio.to_thread.run_sync, publish, 1_000)
            seen = await take(subscription, 1_000)
    assert [n for n in seen if n < 1_000] == list(range(500))
    assert [n for n in seen if n >= 1_000] == list(range(1_000, 1_500))


async def test_a_stopped_bus_ends_subscriptions_and_ignores_publishers() -> None:
    bus = Bus()
    with bus.subscribe(TOPIC) as subscription:
        bus.publish(TOPIC, event(1))
        bus.stop()
        bus.publish(TOPIC, event(2))
        with anyio.fail_after(5):
            assert [item.ts_ms async for item in subscription] == [1]


@pytest.mark.behaviour("lemon_core.8")
async def test_a_wrong_payload_raises_in_development_and_is_coerced_in_production() -> None:
    wrong = {"run_id": "r", "reason": "x", "extra": 1}
    with pytest.raises(EventPayloadError):
        Bus(strict=True).publish_event(TOPIC, "run_failed", wrong)
    relaxed = Bus(strict=False)
    assert relaxed.publish_event(TOPIC, "run_failed", wrong).payload == RunFailed(
        run_id="r", reason="x"
    )
    hopeless = {"reason": 3}
    assert relaxed.publish_event(TOPIC, "run_failed", hopeless).payload is hopeless


# --- waiting for a run (4.3) ---


def complete(bus: Bus, run_id: str, answer: str = "done") -> None:
    """The gateway's last word."""
    completed = Completion(ok=True, answer=answer, run_id=run_id)
    bus.publish_event(run_topic(run_id), "run_completed", RunCompleted(completed=completed))


def absorb(bus: Bus, run_id: str, by: str) -> None:
    """The router's word that another run goes on."""
    payload = RunAbsorbed(run_id=run_id, absorbed_by=by, mode="steer")
    bus.publish_event(run_topic(run_id), "run_absorbed", payload)


async def test_whoever_watches_a_run_gets_its_completion() -> None:
    bus = Bus()
    with bus.watch_run("a") as waiter:
        bus.publish(run_topic("a"), event(1))
        complete(bus, "a")
        with anyio.fail_after(5):
            assert await waiter.completion(1_000) == Completion(ok=True, answer="done", run_id="a")
    assert not bus.has_subscribers(run_topic("a"))


async def test_a_waiter_goes_on_with_the_run_that_absorbs_its_own() -> None:
    """The absorbing run may end before the waiting task gets a turn."""
    bus = Bus()
    with bus.watch_run("a") as waiter:
        absorb(bus, "a", by="b")
        absorb(bus, "b", by="c")
        complete(bus, "c", "for all three")
        with anyio.fail_after(5):
            assert await waiter.completion(1_000) == Completion(
                ok=True, answer="for all three", run_id="c"
            )
    assert not any(bus.has_subscribers(run_topic(name)) for name in "abc")


async def test_wait_run_sees_the_end_of_a_run_from_now_on() -> None:
    bus = Bus()
    ends: list[object] = []
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            ends.append(await bus.wait_run("a", 60_000))

        tasks.start_soon(wait)
        with anyio.fail_after(5):
            while not bus.has_subscribers(run_topic("a")):
                await anyio.lowlevel.checkpoint()
        complete(bus, "a")
    assert ends == [Completion(ok=True, answer="done", run_id="a")]


async def test_a_lost_run_ends_as_a_failed_completion() -> None:
    bus = Bus(strict=False)
    with bus.watch_run("a") as waiter:
        bus.publish_event(run_topic("a"), "run_failed", {"run_id": "a", "reason": "gone", "x": 1})
        assert await waiter.completion(1_000) == Completion(ok=False, error="gone", run_id="a")


async def test_a_plain_map_is_read_and_a_useless_one_is_passed_over() -> None:
    bus = Bus(strict=False)
    with bus.watch_run("a") as waiter:
        bus.publish_event(run_topic("a"), "run_completed", {"completed": 3})
        bus.publish_event(run_topic("a"), "run_absorbed", {"absorbed_by": 3})
        bus.publish_event(run_topic("a"), "run_completed", {"completed": {"ok": False, "x": 1}})
        assert await waiter.completion(1_000) == Completion(ok=False)


async def test_time_runs_out() -> None:
    bus = Bus()
    with bus.watch_run("a") as waiter:
        absorb(bus, "a", by="a")
        assert await waiter.completion(0) == "timeout"
    assert await bus.wait_run("a", 1) == "timeout"


async def test_a_stopped_bus_keeps_nobody_waiting() -> None:
    bus = Bus()
    with bus.watch_run("a") as waiter:
        bus.stop()
        with anyio.fail_after(5):
            assert await waiter.completion(60_000) == Completion(ok=False, error="bus_stopped")
            assert await bus.wait_run("a", 60_000) == Completion(ok=False, error="bus_stopped")
            with bus.subscribe(TOPIC) as late:
                assert await late.receive_batch() == []


async def test_a_listener_is_handed_events_of_its_topics_until_it_ends() -> None:
    bus = Bus()
    seen: list[int] = []
    with bus.listening((TOPIC, "other"), lambda taken: seen.append(taken.ts_ms)) as listener:
        bus.publish(TOPIC, event(1))
        bus.publish("other", event(2))
        bus.publish("third", event(3))
        bus.publish_from(listener, TOPIC, event(4))
        assert seen == [1, 2], "at once, and not its own"
        await anyio.to_thread.run_sync(bus.publish, TOPIC, event(5))
        await anyio.lowlevel.checkpoint()
        assert seen == [1, 2, 5]
    bus.publish(TOPIC, event(6))
    assert seen == [1, 2, 5]
    assert not bus.has_subscribers(TOPIC)


async def test_a_failing_listener_is_no_concern_of_the_publisher() -> None:
    bus = Bus()

    def fail(_: Event) -> None:
        raise RuntimeError("not today")

    with bus.listening((TOPIC,), fail), bus.subscribe(TOPIC) as other:
        bus.publish(TOPIC, event(1))
        assert await take(other, 1) == [1]
