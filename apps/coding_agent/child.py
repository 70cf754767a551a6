"""A child: what it is to do, and what is known of it while it lives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio

from coding_agent.live_runs import LiveRun
from coding_agent.tasks import TaskRecord
from lemon_core.actions import ChildBinding
from lemon_core.errors import LemonError
from lemon_core.events import Completion
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.executor import RunOptions, Sink
from lemon_gateway.requests import EngineCompleted, ExecutionRequest

TASK_TIMEOUT_MS: Final = 1_800_000


class ChildRun(Protocol):
    """A run as this module drives it; the executor's `Runner` is one."""

    async def run(self) -> None: ...
    async def cancel(self) -> None: ...


MakeRun = Callable[[ExecutionRequest, RunOptions, Sink], ChildRun]


class SpawnRefused(LemonError):
    """A run may not start this child; the message says which bound it would break."""

    code = "spawn_refused"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a child is to do; what is None is the parent's."""

    prompt: str
    description: str
    role: str | None = None
    instructions: str | None = None
    model: str | None = None
    thinking_level: str | None = None
    cwd: str | None = None
    policy: ToolPolicy | None = None
    agent_id: str | None = None
    session_key: str | None = None
    queue_mode: str = "steer_backlog"
    wants_followup: bool = False
    timeout_ms: int = TASK_TIMEOUT_MS
    tool_call_id: str | None = None
    meta: Mapping[str, object] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Child:
    """A task that has not ended; `joiners` counts who waits for its result right now.

    `is_unwanted`: who asked for it has been aborted, so its end is told to nobody.
    """

    record: TaskRecord
    binding: ChildBinding
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stop: Callable[[], Awaitable[None]] | None = None
    is_aborted: bool = False
    is_unwanted: bool = False
    joiners: int = 0
    completion: EngineCompleted | Completion | None = None
    question: str | None = None
    asked: anyio.Event = field(default_factory=anyio.Event)
    current_action: str | None = None
    actions: list[dict[str, object]] = field(default_factory=list)

    def ask(self, question: str | None) -> None:
        """Note that the child waits for an answer of its parent, or does so no longer."""
        self.question = question
        if question is None:
            self.asked = anyio.Event()
        else:
            self.asked.set()


def child_meta(parent: LiveRun, spec: ChildSpec) -> dict[str, object]:
    """What the child's request says besides its prompt."""
    meta: dict[str, object] = {
        "model": spec.model or parent.model,
        "parent_session": parent.session_id,
    }
    chosen = {
        "system_prompt": spec.instructions,
        "thinking_level": spec.thinking_level or parent.meta.get("thinking_level"),
        # Whoever answers the parent's questions answers the child's.
        "approvals": parent.meta.get("approvals"),
    }
    return meta | {name: value for name, value in chosen.items() if value is not None}
