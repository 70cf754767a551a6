"""`bazel run //tools/bench:agent_loop`: what the agent loop costs beyond the model's stream.

Everything runs in this process against the scripted provider, whose answers go through the real
parser. A turn of the loop is compared with reading the same answer from lemon_ai alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from lemon_agent import (
    AbortSignal,
    Agent,
    AgentContext,
    AgentTool,
    AgentToolResult,
    LoopConfig,
    RunFailed,
    SchemaCache,
    ToolCallContext,
    run_loop,
)
from lemon_ai import Client, Context, UserMessage
from lemon_ai.testing import FakeToolCall, ScriptedAdapter, Turn, scripted_model
from tools.bench.model import TOKENS
from tools.bench.processes import BenchError
from tools.bench.stats import percentile
from tools.bench.table import Row, machine_facts, show

TOOLS: Final = 10
CALLS: Final = 10
# Runs that are timed together: one alone is too short for the clock.
BATCH: Final = 20

_ANSWER: Final = Turn(text=[f"word{number} " for number in range(TOKENS)])
_PROMPT: Final = UserMessage(content="Say hello.")
_MODEL: Final = scripted_model()


async def _work(call: ToolCallContext) -> AgentToolResult:
    return AgentToolResult.of_text("done")


def make_tools() -> tuple[AgentTool, ...]:
    """Tools that do nothing, with schemas of a usual size."""
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "A file below the working directory."},
            "limit": {"type": "integer", "description": "At most this many lines."},
        },
        "required": ["path"],
    }
    return tuple(
        AgentTool(f"tool_{number}", "Does nothing, and quickly.", parameters, _work)
        for number in range(TOOLS)
    )


def call_turn(calls: int) -> Turn:
    """An answer that calls tools."""
    return Turn(
        tool_calls=[
            FakeToolCall(f"tool_{number % TOOLS}", {"path": f"file{number}"})
            for number in range(calls)
        ]
    )


@dataclass(slots=True)
class Loop:
    """A scripted model and the loop's configuration, made once as an application does."""

    adapter: ScriptedAdapter
    client: Client
    config: LoopConfig
    context: AgentContext
    events: int = 0

    async def stream(self) -> None:
        """Read one answer from lemon_ai alone."""
        self.adapter.requests.clear()
        async with self.client.stream(_MODEL, Context(messages=[_PROMPT])) as stream:
            while await stream.next_batch():
                pass

    async def turn(self) -> None:
        """One turn of the loop."""
        self.adapter.requests.clear()
        await run_loop((_PROMPT,), self.context, self.config, AbortSignal(), self._emit)

    async def agent_turn(self) -> None:
        """One turn of an agent of its own, read through a subscription."""
        self.adapter.requests.clear()
        async with Agent(self.config, tools=self.context.tools, follow_up_grace_ms=0) as agent:
            with agent.subscribe() as events:
                agent.prompt(_PROMPT)
                while batch := await events.receive_batch():
                    if any(event.type == "agent_end" for event in batch):
                        return

    async def tool_turn(self, calls: int) -> None:
        """A turn with tool calls, and the turn that answers."""
        self.adapter.enqueue(call_turn(calls))
        await self.turn()

    async def tool_stream(self, calls: int) -> None:
        """Read the two answers of such a run from lemon_ai alone."""
        self.adapter.enqueue(call_turn(calls))
        await self.stream()
        await self.stream()

    def _emit(self, event: object) -> None:
        self.events += 1
        if isinstance(event, RunFailed):
            raise BenchError(f"a run failed: {event.detail}")


Kind = Callable[[], Awaitable[None]]


async def milliseconds(kinds: Mapping[str, Kind], runs: int) -> dict[str, float]:
    """The middle of what each kind of run takes, over batches of runs.

    The kinds take turns, so that what else the machine does hits all of them.
    """
    batch = min(BATCH, runs)
    values: dict[str, list[float]] = {name: [] for name in kinds}
    for one in kinds.values():
        await one()
    for _ in range(max(1, runs // batch)):
        for name, one in kinds.items():
            began = time.perf_counter()
            for _ in range(batch):
                await one()
            values[name].append((time.perf_counter() - began) * 1000 / batch)
    return {name: percentile(taken, 50) for name, taken in values.items()}


def rows(taken_ms: Mapping[str, float]) -> list[Row]:
    """The table, from the middle times of the kinds of runs."""
    stream_ms, turn_ms, agent_ms = taken_ms["stream"], taken_ms["turn"], taken_ms["agent"]
    per_call_ms = (taken_ms["calls"] - taken_ms["call"]) / (CALLS - 1)
    stream_per_call_ms = (taken_ms["calls' streams"] - taken_ms["call's streams"]) / (CALLS - 1)
    return [
        Row("turns per second", 1000 / turn_ms, "1/s"),
        Row("turns per second of an agent with a subscription", 1000 / agent_ms, "1/s"),
        Row(f"a turn of {TOKENS} tokens", turn_ms, "ms"),
        Row("the model's stream alone", stream_ms, "ms"),
        Row("overhead per turn", turn_ms - stream_ms, "ms"),
        Row("overhead per turn, agent with a subscription", agent_ms - stream_ms, "ms"),
        Row("a tool call that does nothing", per_call_ms, "ms"),
        Row("overhead per tool call", per_call_ms - stream_per_call_ms, "ms"),
    ]


async def measure(runs: int) -> list[Row]:
    """Measure everything over `runs` runs each."""
    adapter = ScriptedAdapter(default=_ANSWER)
    tools = make_tools()
    async with Client(adapters={"scripted": adapter}) as client:
        config = LoopConfig(
            model=_MODEL,
            stream_fn=client.stream,
            tool_schema_snapshot=SchemaCache().snapshot(tools),
        )
        loop = Loop(adapter, client, config, AgentContext("Be brief.", (), tools))
        kinds: dict[str, Kind] = {
            "stream": loop.stream,
            "turn": loop.turn,
            "agent": loop.agent_turn,
            "call": lambda: loop.tool_turn(1),
            "calls": lambda: loop.tool_turn(CALLS),
            "call's streams": lambda: loop.tool_stream(1),
            "calls' streams": lambda: loop.tool_stream(CALLS),
        }
        return rows(await milliseconds(kinds, runs))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="agent_loop", description="What the agent loop costs.")
    parser.add_argument("--runs", type=int, default=2_000, help="runs of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    measured = anyio.run(measure, max(1, arguments.runs))
    facts = {"tools": TOOLS, **machine_facts(began)}
    print(show(measured, facts, as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
