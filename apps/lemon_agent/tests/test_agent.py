from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from lemon_agent import (
    Agent,
    AgentEnd,
    AgentEvent,
    AgentToolResult,
    AlreadyStreaming,
    CannotContinue,
    EventSubscription,
    NoMessages,
    ToolCallContext,
    validate_transcript,
)
from lemon_agent.tests.harness import (
    HOOKS,
    HeldTool,
    Scene,
    calls,
    make_tool,
    scene,
    steps,
    text_of,
    user,
)
from lemon_ai import AssistantMessage, UserMessage
from lemon_ai.testing import Turn

pytestmark = pytest.mark.anyio

DONE = Turn(text="done")
LONG_GRACE_MS = 60_000


@asynccontextmanager
async def agent_of(s: Scene, **options: Any) -> AsyncIterator[tuple[Agent, EventSubscription]]:
    """An agent that does not wait at the end, with a subscription, bounded in time."""
    config = s.config(**options.pop("config", {}))
    options = {"follow_up_grace_ms": 0, "system_prompt": "be brief", **options}
    with anyio.fail_after(5):
        async with Agent(config, **options) as agent:
            with agent.subscribe() as events:
                yield agent, events


async def until(events: EventSubscription, kind: str) -> list[AgentEvent]:
    """The events up to the next one of this kind."""
    seen: list[AgentEvent] = []
    async for event in events:
        seen.append(event)
        if event.type == kind:
            return seen
    raise AssertionError(f"no {kind} in {[event.type for event in seen]}")


def texts(agent: Agent) -> list[str]:
    return [text_of(message) for message in agent.messages]


@pytest.mark.behaviour("lemon_agent.1")
async def test_the_end_holds_the_new_messages_and_the_agent_holds_all() -> None:
    async with scene(Turn(text="one"), Turn(text="two")) as s, agent_of(s) as (agent, events):
        agent.prompt("first")
        await until(events, "agent_end")
        agent.prompt(user("second"))
        end = (await until(events, "agent_end"))[-1]
        assert isinstance(end, AgentEnd)
        assert [text_of(message) for message in end.messages] == ["second", "two"]
        assert texts(agent) == ["first", "one", "second", "two"]
        assert s.shown(1) == ["first", "one", "second"]


async def test_several_messages_may_be_one_prompt() -> None:
    async with scene(DONE) as s, agent_of(s) as (agent, _):
        agent.prompt([user("a"), user("b")])
        await agent.wait_for_idle()
        assert texts(agent) == ["a", "b", "done"]


@pytest.mark.behaviour("lemon_agent.11")
async def test_a_prompt_while_busy_is_refused_from_any_task() -> None:
    refused: list[str] = []

    async def intrude() -> None:
        with pytest.raises(AlreadyStreaming) as caught:
            agent.prompt("me too")
        refused.append(caught.value.code)

    async with scene(Turn(text="done", gate="held")) as s, agent_of(s) as (agent, _):
        agent.prompt("first")
        with pytest.raises(AlreadyStreaming):
            agent.continue_()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(intrude)
            tasks.start_soon(intrude)
        s.adapter.gate("held").open()
        await agent.wait_for_idle()
        assert texts(agent) == ["first", "done"]
    assert refused == ["already_streaming"] * 2


@pytest.mark.behaviour("lemon_agent.11")
async def test_continue_needs_something_to_answer() -> None:
    async with scene(DONE) as s:
        async with agent_of(s) as (agent, _):
            with pytest.raises(NoMessages):
                agent.continue_()
        async with agent_of(s, messages=[AssistantMessage()]) as (agent, _):
            with pytest.raises(CannotContinue):
                agent.continue_()
        async with agent_of(s, messages=[user("open")]) as (agent, _):
            agent.continue_()
            await agent.wait_for_idle()
            assert texts(agent) == ["open", "done"]


@pytest.mark.behaviour("lemon_agent.11")
async def test_ten_waiters_are_released_and_one_that_gives_up_leaves_the_run_alone() -> None:
    released: list[int] = []

    async def wait(number: int) -> None:
        await agent.wait_for_idle()
        released.append(number)

    async with scene(Turn(text="done", gate="held")) as s, agent_of(s) as (agent, _):
        agent.prompt("go")
        with pytest.raises(TimeoutError):
            await agent.wait_for_idle(timeout_s=0.01)
        assert agent.state.is_streaming
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(wait, number)
            await s.adapter.gate("held").reached.wait()
            assert released == []
            s.adapter.gate("held").open()
        assert sorted(released) == list(range(10))
        assert texts(agent) == ["go", "done"]


async def test_the_state_follows_the_run() -> None:
    held = HeldTool("held")
    turn = Turn(text=["half ", "way"], gate="mid", gate_after=1)
    async with (
        scene(turn, calls("held"), DONE) as s,
        agent_of(s, tools=[held.tool()]) as (agent, events),
    ):
        agent.prompt("go")
        await s.adapter.gate("mid").reached.wait()
        state = agent.state
        assert state.is_streaming
        assert state.stream_message is not None
        assert text_of(state.stream_message) == "half "
        s.adapter.gate("mid").open()
        await until(events, "agent_end")

        agent.prompt("more")
        await held.inside.wait()
        assert agent.state.pending_tool_calls == {"call_1"}
        held.release.set()
        await until(events, "agent_end")
        state = agent.state
        assert (state.is_streaming, state.stream_message, state.error) == (False, None, None)
        assert state.pending_tool_calls == frozenset()
        assert list(state.messages) == list(agent.messages)


@pytest.mark.behaviour("lemon_agent.27")
@pytest.mark.parametrize("hook", HOOKS)
async def test_after_a_crash_in_a_hook_the_agent_is_idle_and_usable(hook: str) -> None:
    broken = True

    def crash_once(real: Any, *arguments: Any) -> Any:
        nonlocal broken
        if broken:
            broken = False
            raise ZeroDivisionError("boom")
        return real(*arguments)

    async with scene(DONE) as s:

        async def messages_as_they_are(*arguments: Any) -> Any:
            return crash_once(lambda messages, _: messages, *arguments)

        async def no_key(*arguments: Any) -> Any:
            return crash_once(lambda _: None, *arguments)

        hooks: dict[str, Any] = {
            "convert_to_llm": lambda *a: crash_once(list, *a),
            "transform_context": messages_as_they_are,
            "stream_fn": lambda *a: crash_once(s.client.stream, *a),
            "get_api_key": no_key,
        }
        async with agent_of(s, config={hook: hooks[hook]}) as (agent, events):
            agent.prompt("go")
            await until(events, "error")
            after_the_crash = agent.state
            assert not after_the_crash.is_streaming
            assert after_the_crash.error == "ZeroDivisionError: boom"
            agent.prompt("again")
            await until(events, "agent_end")
            assert agent.state.error is None
            assert texts(agent)[-1] == "done"


# -- queues ----------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_agent.7")
async def test_steering_is_delivered_one_at_a_time_before_the_next_calls() -> None:
    held = HeldTool("held")
    turns = [calls("held"), Turn(text="one"), Turn(text="two")]
    async with scene(*turns) as s, agent_of(s, tools=[held.tool()]) as (agent, _):
        agent.prompt("go")
        await held.inside.wait()
        agent.steer("first")
        agent.steer("second")
        held.release.set()
        await agent.wait_for_idle()
        assert s.shown(1)[-2:] == ["held done", "first"]
        assert s.shown(2)[-2:] == ["one", "second"]


@pytest.mark.behaviour("lemon_agent.9")
async def test_the_mode_all_delivers_a_whole_queue_at_once() -> None:
    held = HeldTool("held")
    turns = [calls("held"), Turn(text="one"), Turn(text="two")]
    modes: Any = {"steering_mode": "all", "follow_up_mode": "all"}
    async with scene(*turns) as s, agent_of(s, tools=[held.tool()], **modes) as (agent, _):
        agent.prompt("go")
        await held.inside.wait()
        for text in ("a", "b"):
            agent.steer(f"steer {text}")
            agent.follow_up(f"follow {text}")
        held.release.set()
        await agent.wait_for_idle()
        assert s.shown(1)[-3:] == ["held done", "steer a", "steer b"]
        assert s.shown(2)[-3:] == ["one", "follow a", "follow b"]


@pytest.mark.behaviour("lemon_agent.9")
async def test_follow_ups_come_one_at_a_time_in_order() -> None:
    turns = [Turn(text="1", gate="held"), Turn(text="2"), Turn(text="3")]
    async with scene(*turns) as s, agent_of(s) as (agent, _):
        agent.prompt("go")
        agent.follow_up("a")
        agent.follow_up("b")
        s.adapter.gate("held").open()
        await agent.wait_for_idle()
        assert texts(agent) == ["go", "1", "a", "2", "b", "3"]


@pytest.mark.behaviour("lemon_agent.9")
async def test_a_follow_up_after_the_last_turn_is_handled_in_the_same_run() -> None:
    turns = [Turn(text="first"), Turn(text="second"), Turn(text="third")]
    async with (
        scene(*turns) as s,
        agent_of(s, follow_up_grace_ms=LONG_GRACE_MS) as (agent, events),
    ):
        agent.prompt("go")
        await until(events, "turn_end")
        agent.follow_up("and then")
        await until(events, "turn_end")
        agent.steer("and again")
        seen = await until(events, "turn_end")
        assert "agent_start" not in [event.type for event in seen]
        # An abort ends the wait; the work was complete, so the run ends as such.
        agent.abort()
        await until(events, "agent_end")
        assert texts(agent) == ["go", "first", "and then", "second", "and again", "third"]


async def test_a_follow_up_that_comes_with_the_abort_stays_queued() -> None:
    async with (
        scene(DONE) as s,
        agent_of(s, follow_up_grace_ms=LONG_GRACE_MS) as (agent, events),
    ):
        agent.prompt("go")
        await until(events, "turn_end")
        agent.follow_up("and then")
        agent.abort()
        await until(events, "agent_end")
        assert len(agent.pending_messages) == 1
        assert texts(agent) == ["go", "done"]


async def test_the_wait_for_a_late_follow_up_ends_by_itself() -> None:
    async with scene(DONE) as s, agent_of(s, follow_up_grace_ms=1) as (agent, events):
        agent.prompt("go")
        await until(events, "agent_end")
        assert agent.is_idle


@pytest.mark.behaviour("lemon_agent.9")
async def test_abort_keeps_the_queues_for_the_next_run() -> None:
    turns = [Turn(text="never", gate="held"), Turn(text="1"), Turn(text="2")]
    async with scene(*turns) as s, agent_of(s) as (agent, events):
        agent.prompt("go")
        await s.adapter.gate("held").reached.wait()
        agent.steer("steered")
        agent.follow_up("followed")
        agent.abort()
        agent.abort()
        await until(events, "canceled")
        pending = [text_of(queued.message) for queued in agent.pending_messages]
        assert pending == ["steered", "followed"]
        agent.prompt("next")
        await until(events, "agent_end")
        assert texts(agent)[-5:] == ["next", "steered", "1", "followed", "2"]


async def test_a_queued_message_can_be_taken_back_until_it_is_delivered() -> None:
    async with scene() as s, agent_of(s) as (agent, _):
        first, second = UserMessage(content="a"), UserMessage(content="a")
        agent.steer(first)
        agent.follow_up(second)
        assert agent.withdraw(second)
        assert not agent.withdraw(second)
        assert [queued.message for queued in agent.pending_messages] == [first]


async def test_clearing_the_queues_gives_back_what_was_in_them() -> None:
    async with scene() as s, agent_of(s) as (agent, _):
        agent.follow_up("b")
        agent.steer("a", "be loud")
        cleared = agent.clear_queues()
        assert [(text_of(q.message), q.system_prompt) for q in cleared] == [
            ("a", "be loud"),
            ("b", None),
        ]
        assert agent.pending_messages == ()


@pytest.mark.behaviour("lemon_agent.8")
async def test_redirect_stops_the_call_in_flight_and_the_run_completes() -> None:
    turn = Turn(text=["wrong ", "way"], gate="mid", gate_after=1)
    async with scene(turn, DONE) as s, agent_of(s) as (agent, events):
        agent.prompt("go")
        await s.adapter.gate("mid").reached.wait()
        agent.redirect("the other way")
        await until(events, "agent_end")
        assert s.shown(1) == ["go", "the other way"]
        assert texts(agent) == ["go", "wrong ", "the other way", "done"]
        assert agent.state.error is None


@pytest.mark.behaviour("lemon_agent.8")
async def test_redirect_is_a_follow_up_when_idle_ending_or_aborting() -> None:
    async with (
        scene(Turn(text="1"), Turn(text="2"), Turn(text="never", gate="held")) as s,
        agent_of(s, follow_up_grace_ms=LONG_GRACE_MS) as (agent, events),
    ):
        agent.redirect("idle")
        assert len(agent.pending_messages) == 1
        assert agent.clear_queues()

        agent.prompt("go")
        await until(events, "turn_end")
        agent.redirect("ending")
        await until(events, "turn_end")
        assert texts(agent) == ["go", "1", "ending", "2"]

        agent.follow_up("last")
        await s.adapter.gate("held").reached.wait()
        agent.abort()
        agent.redirect("aborting")
        await until(events, "canceled")
        assert [text_of(queued.message) for queued in agent.pending_messages] == ["aborting"]


async def test_redirect_while_tools_run_acts_as_steer() -> None:
    held = HeldTool("held")
    async with scene(calls("held"), DONE) as s, agent_of(s, tools=[held.tool()]) as (agent, _):
        agent.prompt("go")
        await held.inside.wait()
        agent.redirect("then this")
        held.release.set()
        await agent.wait_for_idle()
        assert not held.cancelled
        assert s.shown(1)[-2:] == ["held done", "then this"]


# -- the end ---------------------------------------------------------------------------------


async def test_leaving_aborts_the_run_and_waits_until_nothing_is_left() -> None:
    gone = anyio.Event()

    async def work(_: ToolCallContext) -> AgentToolResult:
        inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                gone.set()
        raise AssertionError

    inside = anyio.Event()
    async with scene(calls("work")) as s:
        async with agent_of(s, tools=[make_tool("work", work)]) as (agent, _):
            events = agent.subscribe()
            agent.prompt("go")
            await inside.wait()
        assert gone.is_set()
        assert agent.is_idle
        assert [event.type async for event in events][-1] == "canceled"
        assert validate_transcript(agent.messages) == []


async def test_the_agent_is_idle_while_an_aborted_tool_still_cleans_up() -> None:
    cleaned_up = anyio.Event()

    async def stubborn(_: ToolCallContext) -> AgentToolResult:
        inside.set()
        with anyio.CancelScope(shield=True):
            await cleaned_up.wait()
        return AgentToolResult.of_text("too late")

    inside = anyio.Event()
    tool = make_tool("stubborn", stubborn)
    turns = [calls("stubborn"), Turn(text="done", gate="held")]
    async with scene(*turns) as s, agent_of(s, tools=[tool]) as (agent, events):
        agent.prompt("go")
        await inside.wait()
        agent.abort()
        await until(events, "canceled")
        agent.prompt("next")
        await s.adapter.gate("held").reached.wait()
        cleaned_up.set()
        await steps()
        # The end of the first run's cleanup is not the end of the second run.
        assert not agent.is_idle
        s.adapter.gate("held").open()
        await until(events, "agent_end")
        assert texts(agent)[-1] == "done"


async def test_an_agent_that_is_not_open_takes_no_prompt() -> None:
    async with scene() as s:
        agent = Agent(s.config())
        with pytest.raises(RuntimeError, match="async with"):
            agent.prompt("go")


# -- subscriptions ---------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_agent.26")
async def test_dead_and_slow_subscribers_do_not_hold_a_run_and_a_slow_one_sees_everything() -> None:
    async with scene(Turn(text=["a "] * 200), DONE) as s, agent_of(s) as (agent, quick):
        slow = agent.subscribe()
        with agent.subscribe():
            pass
        dead = agent.subscribe()
        dead.close()
        agent.prompt("go")
        seen = await until(quick, "agent_end")
        agent.prompt("again")
        seen += await until(quick, "agent_end")
        assert await slow.receive_batch() == seen
        assert await dead.receive_batch() == []


async def test_a_subscriber_sees_an_event_before_the_state_that_it_causes() -> None:
    async with scene(DONE) as s, agent_of(s) as (agent, events):
        agent.prompt("go")
        seen: list[int] = []
        original = events.push

        def push(event: AgentEvent) -> None:
            if event.type == "message_end":
                seen.append(len(agent.messages))
            original(event)

        events.push = push  # type: ignore[method-assign]
        await until(events, "agent_end")
        assert seen == [0, 1]
