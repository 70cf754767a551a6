"""Agents below another one: who runs under which key, and how they are stopped together.

What a task means (budgets, results, depth) belongs to whoever starts it; nothing is restarted here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from anyio.abc import TaskGroup

from lemon_agent.agent import Agent
from lemon_agent.errors import AgentError
from lemon_agent.types import AgentMessage, AgentTool, LoopConfig
from lemon_core.logs import get_logger

if TYPE_CHECKING:
    from lemon_core.runtime import Runtime

log = get_logger(__name__)

STOP_WAIT_S: Final = 5.0

EmitTelemetry = Callable[[str, Mapping[str, float], Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class AgentKey:
    """Where an agent stands in its session."""

    session_id: str
    role: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """A registered agent; `metadata` is the registrar's own."""

    key: AgentKey
    agent: Agent
    metadata: Mapping[str, Any] = field(default_factory=dict)


class AlreadyRegistered(AgentError):
    """The key belongs to another agent that lives."""

    code = "already_registered"

    def __init__(self, key: AgentKey) -> None:
        super().__init__(f"an agent {key.role}/{key.index} runs in session {key.session_id}")
        self.key = key


class AgentRegistry:
    """Living agents by key; whoever owns an agent takes its entry out when the agent ends.

    One per runtime: `runtime.service(AgentRegistry.of)`.
    """

    def __init__(self) -> None:
        self._entries: dict[AgentKey, AgentEntry] = {}

    @classmethod
    def of(cls, runtime: Runtime) -> Self:
        """The registry of a runtime, for `runtime.service`."""
        return cls()

    def register(
        self, key: AgentKey, agent: Agent, metadata: Mapping[str, Any] | None = None
    ) -> AgentEntry:
        """Enter an agent; raises `AlreadyRegistered` when the key is taken by another one."""
        known = self._entries.get(key)
        if known is not None and known.agent is not agent:
            raise AlreadyRegistered(key)
        entry = AgentEntry(key, agent, dict(metadata or {}))
        self._entries[key] = entry
        return entry

    def unregister(self, key: AgentKey) -> None:
        """Take an agent out; one that is not there is fine."""
        self._entries.pop(key, None)

    def lookup(self, key: AgentKey) -> AgentEntry | None:
        """The agent with this key."""
        return self._entries.get(key)

    def list(
        self, *, session_id: str | None = None, role: str | None = None
    ) -> Sequence[AgentEntry]:
        """The agents, of one session or one role when it is given, in order of registering."""
        return [
            entry
            for entry in self._entries.values()
            if session_id in (None, entry.key.session_id) and role in (None, entry.key.role)
        ]

    def count(self, *, session_id: str | None = None, role: str | None = None) -> int:
        """How many agents `list` would give."""
        return len(self.list(session_id=session_id, role=role))


@dataclass(eq=False)
class _Child:
    agent: Agent
    key: AgentKey | None
    stop: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class SubagentGroup:
    """Owns the agents that it starts. `async with` it: leaving stops them all and waits.

    `emit` is the telemetry's, and hears of each agent's start and end.
    """

    def __init__(self, registry: AgentRegistry, emit: EmitTelemetry | None = None) -> None:
        self._registry, self._emit = registry, emit
        self._children: dict[Agent, _Child] = {}
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return None
        for child in self._children.values():
            child.agent.abort()
            child.stop.set()
        tasks.cancel_scope.deadline = anyio.current_time() + STOP_WAIT_S
        return await tasks.__aexit__(exc_type, exc, traceback)

    async def start(
        self,
        config: LoopConfig,
        *,
        key: AgentKey | None = None,
        metadata: Mapping[str, Any] | None = None,
        system_prompt: str = "",
        tools: Sequence[AgentTool] = (),
        messages: Sequence[AgentMessage] = (),
        **options: Any,
    ) -> Agent:
        """An open agent, registered under `key` until it ends for any reason.

        Its runs end with the signal of the run that started it when `options` has `parent`. Raises
        `AlreadyRegistered`.
        """
        if self._tasks is None:
            raise RuntimeError("the group is not open: use it inside `async with`")
        agent = Agent(
            config, system_prompt=system_prompt, tools=tools, messages=messages, **options
        )
        if key is not None:
            self._registry.register(key, agent, metadata)
        child = self._children[agent] = _Child(agent, key)
        self._tell("spawn", key)
        try:
            await self._tasks.start(self._live, child)
        except BaseException:
            self._forget(child)
            raise
        return agent

    async def stop(self, agent: Agent) -> None:
        """Abort the agent and wait until nothing of it is left; after 5 s it is cancelled."""
        child = self._children.get(agent)
        if child is None:
            return
        agent.abort()
        child.stop.set()
        with anyio.move_on_after(STOP_WAIT_S):
            await child.ended.wait()
            return
        child.scope.cancel()
        await child.ended.wait()

    async def stop_by_key(self, key: AgentKey) -> bool:
        """Stop the agent with this key; False when this group has none."""
        child = next((c for c in self._children.values() if c.key == key), None)
        if child is None:
            return False
        await self.stop(child.agent)
        return True

    async def stop_all(self) -> None:
        """Stop every agent of the group, all at once."""
        async with anyio.create_task_group() as tasks:
            for agent in tuple(self._children):
                tasks.start_soon(self.stop, agent)

    def list(self) -> Sequence[Agent]:
        """The agents that live."""
        return list(self._children)

    @property
    def count(self) -> int:
        """How many live."""
        return len(self._children)

    async def _live(self, child: _Child, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        try:
            with child.scope:
                async with child.agent:
                    task_status.started()
                    await child.stop.wait()
        except Exception:  # one agent's fault must not take its siblings along
            log.exception("subagent.crashed")
        finally:
            self._forget(child)

    def _forget(self, child: _Child) -> None:
        self._children.pop(child.agent, None)
        if child.key is not None:
            self._registry.unregister(child.key)
        if not child.ended.is_set():
            self._tell("end", child.key)
        child.ended.set()

    def _tell(self, what: str, key: AgentKey | None) -> None:
        if self._emit is not None:
            metadata = {} if key is None else {"session_id": key.session_id, "role": key.role}
            self._emit(f"lemon_agent.subagent.{what}", {"count": len(self._children)}, metadata)
