"""Runs that live right now, as those see them whom they have given work to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from coding_agent.delivered import DeliveredMessage
from lemon_agent.types import Spent
from lemon_core.execution_context import ExecutionContext


@dataclass(eq=False, slots=True)
class LiveRun:
    """A run and what its children need of it.

    `hand_over` queues a message and says whether it was taken; `is_steer` has it read after the
    tools that run now, else it comes when the agent would stop. `take_back` withdraws it while it
    is not read. What was taken and never read is given back when the run ends. `notify` queues a
    message that may as well be lost with the run. `count_usage` adds what a child used, `used` is
    what the run has used with all of them. `tools` are its tool calls that have ended, and how many
    of them failed; `is_alive` says whether there is an agent that still answers.
    """

    context: ExecutionContext
    session_id: str
    cwd: str
    model: str
    hand_over: Callable[[str, DeliveredMessage, bool], bool]
    notify: Callable[[DeliveredMessage], None]
    take_back: Callable[[str], bool]
    count_usage: Callable[[Mapping[str, object]], None]
    used: Callable[[], Spent]
    meta: Mapping[str, object] = field(default_factory=dict)
    tools: Callable[[], tuple[int, int]] = lambda: (0, 0)
    is_alive: Callable[[], bool] = lambda: True
    children_started: int = 0
    children_used: Spent = field(default_factory=Spent)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.context.run_id

    def add_child_usage(self, usage: Mapping[str, object]) -> None:
        """Count what a child has used against the limits of the run."""
        tokens, cost = usage.get("total_tokens"), usage.get("cost_usd")
        before = self.children_used
        self.children_used = Spent(
            before.tokens + (tokens if isinstance(tokens, int) else 0),
            before.cost_usd + (float(cost) if isinstance(cost, int | float) else 0.0),
        )
        self.count_usage(usage)


class LiveRuns:
    """By run id; one per runtime."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}

    @contextmanager
    def entered(self, run: LiveRun) -> Iterator[None]:
        """The run counts as living for the block."""
        self._runs[run.run_id] = run
        try:
            yield
        finally:
            del self._runs[run.run_id]

    def get(self, run_id: str) -> LiveRun | None:
        """The run, while it lives."""
        return self._runs.get(run_id)

    def all(self) -> list[LiveRun]:
        """Every run that lives."""
        return list(self._runs.values())

    def of_session(self, session_key: str) -> LiveRun | None:
        """The run of a session, while there is one."""
        found = (r for r in self._runs.values() if r.context.lineage.session_key == session_key)
        return next(found, None)
