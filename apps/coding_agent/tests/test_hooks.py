"""What extensions are told of a run (specification coding_agent 9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event as ThreadEvent

import anyio
import anyio.lowlevel
import pytest

from coding_agent.extensions import hooks as hooks_module
from coding_agent.extensions.hooks import TIMEOUT_MS, HookFeed, Hooks, call_of
from lemon_agent import AgentContext, LoopConfig
from lemon_agent.events import AgentEnd, AgentStart, RunCanceled, RunFailed, TurnStart
from lemon_ai import Client, UserMessage
from lemon_ai.testing import ScriptedAdapter, scripted_model
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(feed: HookFeed) -> AsyncIterator[None]:
    """The feed at work for the block, and to its end."""
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.serve)
            yield
            feed.close()


async def test_every_hook_of_an_event_is_told_whatever_the_others_do() -> None:
    told: list[str] = []

    def throws() -> None:
        raise ValueError("no")

    async def late() -> None:
        told.append("async")

    given: Hooks = {
        "on_agent_start": [("a", throws), ("b", lambda: told.append("plain")), ("c", late)]
    }
    feed = HookFeed(given, FakeClock())
    async with served(feed):
        feed.note(AgentStart())
        feed.note(TurnStart())
    assert told == ["plain", "async"]


async def test_one_that_takes_too_long_is_left_behind() -> None:
    clock, release, told = FakeClock(), ThreadEvent(), list[str]()
    given: Hooks = {
        "on_agent_start": [("slow", release.wait), ("next", lambda: told.append("next"))]
    }
    feed = HookFeed(given, clock)
    async with served(feed):
        feed.note(AgentStart())
        await clock.wait_for_sleepers()
        await clock.advance(TIMEOUT_MS)
        while not told:
            await anyio.lowlevel.checkpoint()
    release.set()
    assert told == ["next"]


async def test_the_end_of_a_run_waits_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "LAST_WORDS_S", 0.01)
    release = ThreadEvent()
    feed = HookFeed({"on_agent_start": [("slow", release.wait)]}, FakeClock())
    async with served(feed):
        feed.note(AgentStart())
    release.set()


async def test_a_flood_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "MAX_WAITING", 2)
    told: list[int] = []
    feed = HookFeed({"on_turn_start": [("a", lambda: told.append(1))]}, FakeClock())
    for _ in range(5):
        feed.note(TurnStart())
    async with served(feed):
        pass
    assert told == [1, 1]


def test_however_a_run_ends_its_end_is_told() -> None:
    message = UserMessage(content="x")
    for event in (AgentEnd([message]), RunCanceled("x", [message]), RunFailed("x", "y", [message])):
        assert call_of(event) == ("on_agent_end", ((message,),))


async def test_whoever_watched_before_still_does() -> None:
    seen: list[str] = []
    feed = HookFeed({}, FakeClock())
    client = Client(env={}, adapters={"scripted": ScriptedAdapter([])})
    config = LoopConfig(model=scripted_model(), stream_fn=client.stream)
    watch = feed.watching(lambda context, config: lambda event: seen.append(event.type))
    note = watch(AgentContext(), config)
    assert note is not None
    note(TurnStart())
    assert seen == ["turn_start"]
    await client.aclose()
