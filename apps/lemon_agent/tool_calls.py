"""The tool calls of one answer: side by side where they may be, results in the order of the calls.

`ToolBatch` holds the state and changes it in plain functions; each call that runs is a task of the
run's background group. A result is reported once: when the tool has returned, or, after an abort
or when its time is up, at the latest 100 ms later; a tool that still cleans up then goes on in
the background, and the run's end waits for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

import anyio

from lemon_agent.arguments import Validator, coerce_arguments
from lemon_agent.errors import Aborted, ToolError
from lemon_agent.events import ToolExecutionEnd, ToolExecutionStart, ToolExecutionUpdate
from lemon_agent.loop_detection import warning
from lemon_agent.run_record import RunRecord, normal_name
from lemon_agent.types import AgentTool, AgentToolResult, ToolCallContext
from lemon_ai import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    get_tool_calls,
)
from lemon_core.logs import get_logger

log = get_logger(__name__)

CLEANUP_S: Final = 0.1
INTERRUPTED: Final = "interrupted, outcome unknown"
NOT_STARTED: Final = "not started"


@dataclass(slots=True, eq=False)
class _Slot:
    """One call. `result` is set once; `report_by` is when it is set at the latest."""

    call: ToolCall
    tool: AgentTool | None
    begun: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stopped: Literal["aborted", "timeout"] | None = None
    report_by: float = math.inf
    result: AgentToolResult | None = None

    @property
    def name(self) -> str:
        return self.call.name if self.tool is None else self.tool.name


async def run_tool_calls(run: RunRecord, answer: AssistantMessage) -> ToolBatch:
    """Run the calls of an answer; every call has its result in the history afterwards.

    When this is cut short (the run's task is cancelled), missing results are recorded first.
    """
    batch = ToolBatch(run, answer)
    try:
        with run.signal.watching(batch.abort):
            batch.start_ready()
            while not batch.is_finished:
                await batch.wait()
                batch.start_ready()
    except BaseException:  # cancellation included: nothing of the batch stays behind
        batch.abandon()
        raise
    return batch


class ToolBatch:
    """`results` are the result messages so far; `looping` is set when the loop guard says stop."""

    def __init__(self, run: RunRecord, answer: AssistantMessage) -> None:
        self._run = run
        self._slots = [
            _Slot(call, run.tools.get(normal_name(call.name))) for call in get_tool_calls(answer)
        ]
        run.tally.tool_calls += len(self._slots)
        self._next = 0
        self._running: list[_Slot] = []
        self._aborted = False
        self._is_storing = False
        self._changed = anyio.Event()
        self.results: list[ToolResultMessage] = []
        self.looping: ToolCall | None = None

    # -- the run's side ----------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether every call has its result."""
        return len(self.results) == len(self._slots)

    def start_ready(self) -> None:
        """Start the next calls as far as concurrency and exclusive tools let them run."""
        while self._next < len(self._slots) and not self._aborted:
            slot = self._slots[self._next]
            if not self._may_start(slot):
                return
            self._next += 1
            self._start(slot)

    async def wait(self) -> None:
        """Until a call has ended or a result is overdue."""
        self._changed = anyio.Event()
        with anyio.CancelScope(deadline=min(slot.report_by for slot in self._running)):
            await self._changed.wait()
        now = anyio.current_time()
        for slot in tuple(self._running):
            if slot.report_by <= now:
                self._settle(slot, self._stopped_result(slot))

    def abort(self) -> None:
        """Cancel what runs, drop what waits."""
        self._aborted = True
        deadline = anyio.current_time() + CLEANUP_S
        for slot in self._slots:
            if slot.result is not None:
                continue
            slot.stopped = "aborted"
            slot.scope.cancel()
            if slot.begun:
                slot.report_by = deadline
            else:
                self._settle(slot, _error("aborted", NOT_STARTED))
        self._changed.set()

    def abandon(self) -> None:
        """Record a result for every call that has none, without waiting for anything."""
        for slot in self._slots:
            if slot.result is None:
                slot.stopped = "aborted"
                text = INTERRUPTED if slot.begun else NOT_STARTED
                self._settle(slot, _error("aborted", text))

    # -- one call ----------------------------------------------------------------------------

    def _may_start(self, slot: _Slot) -> bool:
        if not self._running:
            return True
        limit = self._run.config.max_tool_concurrency
        if limit is not None and len(self._running) >= limit:
            return False
        alone = _is_exclusive(slot) or any(map(_is_exclusive, self._running))
        return not alone

    def _start(self, slot: _Slot) -> None:
        if slot.tool is None:
            self._refuse(slot, self._unknown(slot))
            return
        params, problems = self._check(slot.call, slot.tool)
        if problems:
            text = f"Invalid arguments for tool {slot.name}: " + "; ".join(problems)
            self._refuse(slot, _error("invalid_tool_arguments", text, errors=problems))
            return
        if (timeout_ms := self._run.config.tool_timeout_ms) is not None:
            slot.scope.deadline = anyio.current_time() + timeout_ms / 1000
            slot.report_by = slot.scope.deadline + CLEANUP_S
        self._running.append(slot)
        self._run.background.start_soon(self._execute, slot, slot.tool, params)

    def _refuse(self, slot: _Slot, result: AgentToolResult) -> None:
        self._announce(slot)
        self._settle(slot, result)

    def _announce(self, slot: _Slot) -> None:
        slot.begun = True
        self._run.emit(ToolExecutionStart(slot.call.id, slot.name, slot.call.arguments))

    def _check(self, call: ToolCall, tool: AgentTool) -> tuple[dict[str, object], list[str]]:
        if call.arguments_error is not None:
            return {}, [call.arguments_error]
        validators = self._run.snapshot.validators
        validator = validators.get(tool.name)
        if validator is None:
            validator = validators[tool.name] = Validator(tool.parameters)
        params = coerce_arguments(call.arguments, tool.parameters)
        return params, validator.errors(params)

    async def _execute(self, slot: _Slot, tool: AgentTool, params: dict[str, object]) -> None:
        if slot.result is not None:  # aborted between being started and running for the first time
            return
        self._announce(slot)
        context = ToolCallContext(
            tool_call_id=slot.call.id,
            params=params,
            signal=self._run.signal,
            on_update=lambda partial: self._update(slot, partial),
            cwd=self._run.config.cwd,
            run=self._run.config.run,
        )
        result: AgentToolResult | None = None
        with slot.scope:
            result = await _invoke(tool, context, slot)
        self._settle(slot, result or self._stopped_result(slot))

    def _update(self, slot: _Slot, partial: AgentToolResult) -> None:
        if slot.result is None:
            event = ToolExecutionUpdate(slot.call.id, slot.name, slot.call.arguments, partial)
            self._run.emit(event)

    def _settle(self, slot: _Slot, result: AgentToolResult) -> None:
        """The call has ended with this result; whatever comes later for it is dropped."""
        if slot.result is not None:
            return
        slot.result = result
        if slot in self._running:
            self._running.remove(slot)
        if slot.begun:
            end = ToolExecutionEnd(slot.call.id, slot.name, result, result.is_error)
            self._run.emit(end)
        self._store_results()
        self._changed.set()

    def _store_results(self) -> None:
        """Add the result messages that are due to the history: those before the first gap."""
        if self._is_storing:  # a reader of the events aborted the run: the caller goes on storing
            return
        self._is_storing = True
        for slot in self._slots[len(self.results) :]:
            if slot.result is None:
                break
            message = self._result_message(slot, slot.result)
            self.results.append(message)
            self._run.add(message)
        self._is_storing = False

    def _result_message(self, slot: _Slot, result: AgentToolResult) -> ToolResultMessage:
        content = list(result.content)
        if slot.stopped != "aborted":
            match self._run.guard.observe(slot.call, result):
                case "warn":
                    content.append(TextContent(text=warning(self._run.guard.count)))
                case "stop":
                    self.looping = slot.call
                case "ok":
                    pass
        return ToolResultMessage(
            tool_call_id=slot.call.id,
            tool_name=slot.name,
            content=content,
            details=result.details,
            trust="untrusted" if result.trust == "untrusted" else "trusted",
            is_error=result.is_error,
        )

    # -- error results -----------------------------------------------------------------------

    def _unknown(self, slot: _Slot) -> AgentToolResult:
        known = ", ".join(self._run.snapshot.tool_names) or "none"
        text = f"There is no tool {slot.name!r}. Available tools: {known}"
        return _error("unknown_tool", text, tool_name=slot.name)

    def _stopped_result(self, slot: _Slot) -> AgentToolResult:
        if slot.stopped == "aborted":
            return _error("aborted", INTERRUPTED)
        limit = self._run.config.tool_timeout_ms
        text = f"Tool {slot.name} was stopped after {limit} ms; its outcome is unknown"
        return _error("tool_task_timeout", text, timeout_ms=limit)


async def _invoke(tool: AgentTool, context: ToolCallContext, slot: _Slot) -> AgentToolResult | None:
    """What the tool gave, or the error result for what it did instead; None when it was stopped."""
    try:
        result: object = await tool.execute(context)
    except anyio.get_cancelled_exc_class():
        # A library inside a tool may let a cancellation of its own escape: that is the tool's
        # failure. One that comes from outside goes on its way.
        if anyio.current_effective_deadline() == -math.inf:
            raise
        log.warning("tool.leaked_cancellation", tool=tool.name)
        return _error(
            "tool_exception", f"Tool {tool.name} failed: a cancellation inside it escaped"
        )
    except Exception as exc:  # a tool may raise anything: the model is told
        if slot.stopped == "aborted" or isinstance(exc, Aborted):
            return _error("aborted", INTERRUPTED)
        if isinstance(exc, ToolError):
            return _error("tool_error", str(exc))
        log.exception("tool.crashed", tool=tool.name)
        kind = type(exc).__name__
        text = f"Tool {tool.name} failed: {kind}: {exc}"
        return _error("tool_exception", text, exception=kind, message=str(exc))
    if isinstance(result, AgentToolResult) and all(
        isinstance(block, TextContent | ImageContent) for block in result.content
    ):
        return result
    text = f"Tool {tool.name} returned {type(result).__name__} where a tool result was expected"
    return _error("unexpected_tool_result", text)


def _is_exclusive(slot: _Slot) -> bool:
    return slot.tool is not None and slot.tool.exclusive


def _error(error_type: str, text: str, **facts: object) -> AgentToolResult:
    details = {"error_type": error_type, **facts}
    return AgentToolResult.of_text(text, details=details, is_error=True)
