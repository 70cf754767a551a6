"""The README's example runs, and its sequences of events are those of real runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
import pytest

from lemon_agent import (
    AbortSignal,
    AgentEvent,
    AgentMessage,
    AgentToolResult,
    Compaction,
    CompactionResult,
    LoopState,
    MessageUpdate,
    QueuedMessage,
    ToolCallContext,
)
from lemon_agent.runtime import ModelRuntime
from lemon_agent.states import NEXT
from lemon_agent.tests.harness import Scene, calls, make_tool, scene, user
from lemon_ai import Client
from lemon_ai.testing import FakeChatServer, FakeToolCall, Turn
from lemon_core.config.model import Defaults, Provider

pytestmark = pytest.mark.anyio

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(heading: str, language: str) -> list[str]:
    """The fenced blocks of one section."""
    section = README.split(f" {heading}\n", 1)[1].split("\n#", 1)[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def sequence(heading: str, block: int = 0) -> list[str]:
    return [line.split()[0] for line in blocks(heading, "text")[block].splitlines()]


def squeezed(s: Scene) -> list[str]:
    """What happened, with neighbouring updates of a message told as one."""
    told: list[str] = []
    for kind, group in groupby(s.kinds):
        told += [kind] if kind == "message_update" else list(group)
    return told


def at_the_first_word(s: Scene, act: Any) -> None:
    def on_event(event: AgentEvent) -> None:
        if isinstance(event, MessageUpdate) and event.assistant_event.type == "text_delta":
            s.on_event = None
            act()

    s.on_event = on_event


async def test_a_plain_turn() -> None:
    async with scene(Turn(text="hello you")) as s:
        await s.run()
        assert squeezed(s) == sequence("A plain turn")


async def test_a_tool_turn() -> None:
    async def work(call: ToolCallContext) -> AgentToolResult:
        call.on_update(AgentToolResult.of_text("half"))
        return AgentToolResult.of_text("whole")

    async with scene(calls("work"), Turn(text="done")) as s:
        await s.run(tools=[make_tool("work", work)])
        expected = sequence("A tool turn")
        assert squeezed(s)[-len(expected) :] == expected


async def test_a_steer() -> None:
    queue: list[QueuedMessage] = []
    async with scene(Turn(text="first"), Turn(text="second")) as s:
        at_the_first_word(s, lambda: queue.append(QueuedMessage(user("more"))))
        await s.run(get_steering_messages=lambda: [queue.pop()] if queue else [])
        expected = sequence("A steer")
        assert squeezed(s)[-len(expected) :] == expected


async def test_a_redirect() -> None:
    queue: list[QueuedMessage] = []

    def redirect() -> None:
        queue.append(QueuedMessage(user("rather this")))
        s.signal.request_redirect()

    async with scene(Turn(text=["a ", "b"], gate="never", gate_after=1), Turn(text="c")) as s:
        at_the_first_word(s, redirect)
        await s.run(get_steering_messages=lambda: [queue.pop()] if queue else [])
        expected = sequence("A redirect")
        assert squeezed(s)[-len(expected) :] == expected


async def test_a_compaction() -> None:
    async def summarize(messages: Sequence[AgentMessage], signal: AbortSignal) -> str:
        return "they spoke"

    async def persist(result: CompactionResult) -> None:
        pass

    async def work(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("r" * 4_000)

    compaction = Compaction(
        context_window=1_500, summarize=summarize, persist=persist, keep_recent_tokens=100
    )
    turn = Turn(tool_calls=[FakeToolCall("work")], usage=None)
    async with scene(turn, Turn(text="done")) as s:
        await s.run(
            messages=[user("x" * 2_000)], tools=[make_tool("work", work)], compact=compaction
        )
        expected = sequence("A compaction")
        assert squeezed(s)[-len(expected) :] == expected


async def test_an_abort() -> None:
    async def work(_: ToolCallContext) -> AgentToolResult:
        s.signal.abort()
        await anyio.sleep_forever()
        raise AssertionError

    async with scene(Turn(text=["a ", "b"], gate="never", gate_after=1)) as s:
        at_the_first_word(s, s.signal.abort)
        await s.run()
        expected = sequence("An abort")
        assert squeezed(s)[-len(expected) :] == expected
    async with scene(calls("work", "work")) as s:
        await s.run(tools=[make_tool("work", work)], max_tool_concurrency=1)
        expected = sequence("An abort", 1)
        assert squeezed(s)[-len(expected) :] == expected


def test_the_table_of_states_is_the_one_in_force() -> None:
    rows: dict[str, set[str]] = {}
    for line in README.splitlines():
        if match := re.match(r"\| `(\w+)` \| (.*) \|$", line):
            names = re.findall(r"`(\w+)`", match[2])
            if match[1] in set(LoopState) and all(name in set(LoopState) for name in names):
                rows[match[1]] = set(names)
    assert rows == {
        str(state): {str(target) for target in targets}
        for state, targets in NEXT.items()
        if state is not None and targets
    }


async def test_the_example() -> None:
    turns = [
        Turn(tool_calls=[FakeToolCall("look_up", {"city": "Lisbon"})]),
        Turn(text="About half a million.", when="545000"),
    ]
    example: dict[str, Any] = {}
    exec(blocks("Tools", "python")[0], example)  # noqa: S102 - the README is ours
    with anyio.fail_after(5):
        async with (
            FakeChatServer(turns) as server,
            ModelRuntime(
                defaults=Defaults(),
                providers={"box": Provider(base_url=server.base_url)},
                client=Client(env={}),
            ) as models,
        ):
            assert await example["answer"](models, "How big is Lisbon?") == "About half a million."
