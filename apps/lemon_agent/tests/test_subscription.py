import anyio
import pytest

from lemon_agent import AgentStart, EventSubscription, TurnStart

pytestmark = pytest.mark.anyio


def subscription() -> EventSubscription:
    return EventSubscription(lambda _: None)


async def test_a_batch_is_everything_that_is_ready() -> None:
    events = subscription()
    events.push(AgentStart())
    events.push(TurnStart())
    with anyio.fail_after(5):
        assert await events.receive_batch() == [AgentStart(), TurnStart()]


async def test_a_reader_waits_and_is_woken() -> None:
    events = subscription()
    got: list[str] = []

    async def read() -> None:
        got.extend([event.type async for event in events])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for event in (AgentStart(), TurnStart()):
                await anyio.lowlevel.checkpoint()
                events.push(event)
            events.close()
    assert got == ["agent_start", "turn_start"]


async def test_what_arrived_before_the_end_can_still_be_read_and_nothing_comes_after_it() -> None:
    closed: list[EventSubscription] = []
    events = EventSubscription(closed.append)
    with events:
        events.push(AgentStart())
    events.push(TurnStart())
    events.close()
    with anyio.fail_after(5):
        assert await events.receive_batch() == [AgentStart()]
        assert await events.receive_batch() == []
    assert closed == [events]
