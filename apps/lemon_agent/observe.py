"""What happens in the loop, told to the telemetry and the introspection of a runtime.

A run is watched through `LoopConfig.watch`: whoever builds the agent passes
`runtime.service(loop_watch)`. Tokens are not looked at, and where nobody listens no run is watched
at all. Neither numbers nor records hold a prompt, an argument or a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from lemon_agent.context import estimate_size, message_chars, size_level
from lemon_agent.events import (
    AgentEnd,
    AgentEvent,
    AgentStart,
    Compacted,
    LoopBudgetExhausted,
    LoopStateTransition,
    MessageEnd,
    RunCanceled,
    RunFailed,
    SchemaSnapshotTaken,
    TerminalEvent,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
)
from lemon_agent.runtime.names import NAMES
from lemon_agent.states import LoopState
from lemon_agent.types import AgentContext, LoopConfig, WatchLoop
from lemon_ai import AssistantMessage, ToolResultMessage, get_tool_calls
from lemon_core.capabilities import TEST_CREDENTIAL_ENV_VARS
from lemon_core.config.contributed import ENV_DECLARATIONS

if TYPE_CHECKING:
    from lemon_core.clock import Clock
    from lemon_core.introspection import Introspection
    from lemon_core.runtime import Runtime
    from lemon_core.telemetry import Telemetry

PREFIX: Final = "lemon_agent"
Status = Literal["completed", "early_exit", "budget", "aborted", "error"]


@contextmanager
def attach(runtime: Runtime) -> Iterator[None]:
    """Tell the runtime what this app brings along: which variables it reads, and which of them hold
    credentials."""
    # By its path: it is imported when somebody wants to see the variables.
    runtime.capabilities.contribute(ENV_DECLARATIONS, "lemon_agent.env:DECLARATIONS")
    for row in NAMES.values():
        for variable in row.variables:
            runtime.capabilities.contribute(TEST_CREDENTIAL_ENV_VARS, variable)
    yield


def loop_watch(runtime: Runtime) -> WatchLoop:
    """What to pass as `LoopConfig.watch`: `runtime.service(loop_watch)`."""
    return watcher(runtime.telemetry, runtime.introspection, runtime.clock)


def watcher(telemetry: Telemetry, introspection: Introspection, clock: Clock) -> WatchLoop:
    """A `LoopConfig.watch` that tells these."""

    def watch(context: AgentContext, config: LoopConfig) -> Callable[[AgentEvent], None] | None:
        heard = telemetry if telemetry.is_heard(PREFIX) else None
        kept = introspection if introspection.enabled else None
        if heard is None and kept is None:
            return None
        return _Watched(context, config, heard, kept, clock).take

    return watch


@dataclass(eq=False, slots=True)
class _Watched:
    """One run."""

    context: AgentContext
    config: LoopConfig
    telemetry: Telemetry | None
    introspection: Introspection | None
    clock: Clock
    started_ms: int = 0
    chars: int = 0
    messages: int = 0
    is_continue: bool = True
    is_told: bool = False
    is_spent: bool = False
    raw_names: dict[str, str] = field(default_factory=dict)
    tool_started_ms: dict[str, int] = field(default_factory=dict)

    def take(self, event: AgentEvent) -> None:
        match event:
            case AgentStart():
                self.started_ms = self.clock.monotonic_ms()
                self._emit("loop.start", tool_count=len(self.context.tools))
                if self.telemetry is not None:
                    self.chars = estimate_size(self.context.messages, self.context.system_prompt)
            case SchemaSnapshotTaken(snapshot=snapshot):
                names = len(snapshot.tool_names)
                self._emit("tool_schema_snapshot.created", tool_count=names)
            case LoopStateTransition(origin=origin, target=target):
                self._moved(origin, target)
            case MessageEnd(message=message):
                self._message(message)
            case ToolExecutionStart() | ToolExecutionEnd():
                self._tool(event)
            case TurnEnd(message=message):
                self._record("agent_turn_observed", has_error=message.stop_reason == "error")
            case Compacted():
                self.chars = 4 * event.tokens_after
                self._emit(
                    "context.truncated",
                    removed_messages=event.removed_messages,
                    tokens_before=event.tokens_before,
                    tokens_after=event.tokens_after,
                )
            case LoopBudgetExhausted():
                self.is_spent = True
            case AgentEnd() | RunFailed() | RunCanceled():
                self._ended(event)
            case _:
                pass

    # -- inside ------------------------------------------------------------------------------

    def _moved(self, origin: LoopState | None, target: LoopState) -> None:
        if origin is not None and not self.is_told:
            self._told()
        self._emit("loop.state_transition", origin=origin and origin.value, target=target.value)
        if target is LoopState.AWAIT_MODEL and self.telemetry is not None:
            level = size_level(self.chars)
            self._emit("context.size", chars=self.chars)
            if level != "ok":
                self._emit("context.warning", chars=self.chars, level=level)

    def _told(self) -> None:
        """Once the prompts are known: a run without one goes on where another one stopped."""
        self.is_told = True
        model = self.config.model
        self._record(
            "agent_loop_started",
            model=f"{model.provider}:{model.id}",
            tool_count=len(self.context.tools),
            message_count=len(self.context.messages),
            is_continue=self.is_continue,
        )

    def _message(self, message: object) -> None:
        self.messages += 1
        self.is_continue = self.is_continue and self.is_told
        match message:
            case AssistantMessage():
                self.raw_names = {call.id: call.name for call in get_tool_calls(message)}
            case ToolResultMessage(trust=trust):
                self._emit("tool_result.emit", trust=trust)
            case _:
                pass
        if self.telemetry is not None:
            self.chars += message_chars(message)  # type: ignore[arg-type]  # of a MessageEnd

    def _tool(self, event: ToolExecutionStart | ToolExecutionEnd) -> None:
        now = self.clock.monotonic_ms()
        if isinstance(event, ToolExecutionStart):
            self.tool_started_ms[event.id] = now
            if self.raw_names.get(event.id, event.name) != event.name:
                self._emit("tool_call.name_normalized", tool=event.name)
            self._emit("tool_task.start", tool=event.name)
            return
        taken = now - self.tool_started_ms.pop(event.id, now)
        if event.is_error:
            details = event.result.details
            reason = details.get("error_type") if isinstance(details, dict) else None
            self._emit("tool_task.error", taken, tool=event.name, reason=reason or "tool_error")
        else:
            self._emit("tool_task.end", taken, tool=event.name)

    def _ended(self, event: TerminalEvent) -> None:
        if not self.is_told:
            self._told()
        taken = self.clock.monotonic_ms() - self.started_ms
        self._emit("loop.end", taken, status=self._status(event))
        self._record(
            "agent_loop_ended",
            message_count=self.messages,
            had_error=isinstance(event, RunFailed),
            was_aborted=isinstance(event, RunCanceled),
        )

    def _status(self, event: TerminalEvent) -> Status:
        match event:
            case RunFailed():
                return "error"
            case RunCanceled(reason="task_cancelled"):
                return "early_exit"
            case RunCanceled():
                return "aborted"
            case AgentEnd():
                return "budget" if self.is_spent else "completed"

    def _emit(self, event: str, duration_ms: int | None = None, **metadata: object) -> None:
        if self.telemetry is None:
            return
        numbers = {k: v for k, v in metadata.items() if type(v) is int}
        measured: dict[str, float] = {**numbers}
        if duration_ms is not None:
            measured["duration_ms"] = duration_ms
        rest = {k: v for k, v in metadata.items() if k not in numbers}
        if self.config.run is not None:
            rest["run_id"] = self.config.run.run_id
        self.telemetry.emit(f"{PREFIX}.{event}", measured, rest)

    def _record(self, event_type: str, **payload: object) -> None:
        if self.introspection is None:
            return
        run = self.config.run
        if run is None:
            self.introspection.record(event_type, payload)
            return
        self.introspection.record(
            event_type,
            payload,
            run_id=run.run_id,
            session_key=run.lineage.session_key,
            agent_id=run.lineage.agent_id,
            parent_run_id=run.lineage.parent_run_id,
        )
