"""From the events of the agent to the messages of the gateway's sink, without any I/O.

One translator serves one run: it remembers what the completion needs (the streamed text, the last
answer, the usage) and sees to it that there is only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coding_agent.compaction_notes import CompactionNotes
from coding_agent.reasoning import ReasoningBlock
from coding_agent.tool_titles import cut, kind_of, shortened, title_of
from coding_agent.usage import UsageSum
from lemon_agent import (
    AgentEnd,
    AgentEvent,
    AgentMessage,
    Compacted,
    LoopBudgetExhausted,
    LoopStateTransition,
    MessageEnd,
    MessageUpdate,
    ModelSwitched,
    RunCanceled,
    RunFailed,
    TerminalEvent,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
)
from lemon_agent.types import Spent
from lemon_ai import (
    AssistantMessage,
    TextContent,
    TextDelta,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    Usage,
    format_error,
)
from lemon_core.errors import is_context_overflow
from lemon_core.events import Action, ErrorValue
from lemon_core.resume import ResumeToken
from lemon_gateway.requests import (
    EngineAction,
    EngineCompleted,
    EngineDelta,
    SinkMessage,
)

CANCELLED_BY_USER: Final = "Cancelled by user"
MAX_RESULT_CHARS: Final = 500
# Of a tool's details only these are told to whoever watches: others may hold file contents.
SAFE_DETAILS: Final = (
    "error_type",
    "reason",
    "errors",
    "tool_name",
    "timeout_ms",
    "exit_code",
    "exception",
    "message",
    "status",
    "task_id",
    "task_ids",
    "run_id",
    "current_action",
)


class RunTranslator:
    """`translate` takes the events in their order; `complete` gives the end, once."""

    def __init__(self, run_ref: str) -> None:
        self._run_ref = run_ref
        self._texts: list[str] = []
        self._is_new_answer = True
        self._usage = UsageSum()
        self._last_answer: AssistantMessage | None = None
        self._tools: dict[str, Action] = {}
        self._reasoning: dict[int, ReasoningBlock] = {}
        self._reasoning_count = 0
        self._compaction = CompactionNotes()
        self._spent: LoopBudgetExhausted | None = None
        self._end: TerminalEvent | None = None
        self._is_complete = False

    @property
    def has_ended(self) -> bool:
        """Whether the agent's last event was seen."""
        return self._end is not None

    def translate(self, events: Iterable[AgentEvent]) -> list[SinkMessage]:
        """The messages for these events."""
        messages: list[SinkMessage] = []
        for event in events:
            match event:
                case MessageUpdate():
                    self._add_update(event, messages)
                case ToolExecutionStart() | ToolExecutionUpdate() | ToolExecutionEnd():
                    self._add_tool(event, messages)
                case MessageEnd(message=AssistantMessage() as message):
                    self._take_answer(message, messages)
                case LoopBudgetExhausted():
                    self._spent = event
                case LoopStateTransition() | Compacted():
                    messages += self._compaction.translate(event, self._run_ref)
                case ModelSwitched(notice=notice):
                    action = Action(id="lemon.model_notice", kind="note", title=notice)
                    messages.append(EngineAction(self._run_ref, action, "completed", ok=True))
                case AgentEnd() | RunFailed() | RunCanceled():
                    self._end = event
                case _:
                    pass
        return messages

    def count_usage(self, usage: Usage) -> None:
        """Count a model call that was made for the run and is none of its answers."""
        self._usage.add_other(usage)

    def count_child(self, usage: Mapping[str, object]) -> None:
        """Count what a run that this one started has used."""
        self._usage.add_sums(usage)

    def used(self) -> Spent:
        """What the run has used so far, with all that it started."""
        return Spent(self._usage.counts.get("total_tokens", 0), self._usage.cost_usd or 0.0)

    def complete(
        self, resume: ResumeToken | None, failure: ErrorValue = None
    ) -> EngineCompleted | None:
        """The completion; None when it was given before.

        `failure` is what went wrong outside the agent; without it the last event tells.
        """
        if self._is_complete:
            return None
        self._is_complete = True
        error = failure or self._error()
        streamed = "".join(self._texts)
        return EngineCompleted(
            self._run_ref,
            ok=error is None,
            answer=streamed if error else _text_of(self._last_answer) or streamed,
            error=error,
            resume=resume,
            usage=self._usage.value(),
        )

    # -- answers -----------------------------------------------------------------------------

    def _add_update(self, update: MessageUpdate, messages: list[SinkMessage]) -> None:
        event = update.assistant_event
        match event:
            case TextDelta(delta=text):
                if text:
                    text = self._set_off(text)
                    self._texts.append(text)
                    messages.append(EngineDelta(self._run_ref, text))
            case ThinkingStart(index=index):
                self._reasoning_count += 1
                block = self._reasoning[index] = ReasoningBlock(index, self._reasoning_count)
                messages.append(block.started(self._run_ref))
            case ThinkingDelta(index=index, delta=text):
                known = self._reasoning.get(index)
                if known is not None and known.add(text):
                    messages.append(known.updated(self._run_ref))
            case ThinkingEnd(index=index):
                ended = self._reasoning.pop(index, None)
                if ended is not None:
                    messages.append(ended.completed(self._run_ref))
            case _:
                pass

    def _set_off(self, text: str) -> str:
        """The text, as a paragraph of its own where it begins a further answer of the run."""
        begins, self._is_new_answer = self._is_new_answer, False
        if not begins or not self._texts:
            return text
        ends = "".join(self._texts[-2:])
        missing = 2 - (len(ends) - len(ends.rstrip("\n")))
        return "\n" * max(missing, 0) + text

    def _take_answer(self, message: AssistantMessage, messages: list[SinkMessage]) -> None:
        # A stream that broke off has not ended its blocks.
        messages += (block.completed(self._run_ref) for block in self._reasoning.values())
        self._reasoning.clear()
        self._last_answer = message
        self._is_new_answer = True
        self._usage.add(message.usage)

    # -- tools -------------------------------------------------------------------------------

    def _add_tool(
        self,
        event: ToolExecutionStart | ToolExecutionUpdate | ToolExecutionEnd,
        messages: list[SinkMessage],
    ) -> None:
        match event:
            case ToolExecutionStart(id=call_id, name=name, args=args):
                action = self._tools[call_id] = _action(call_id, name, args)
                messages.append(EngineAction(self._run_ref, action, "started"))
            case ToolExecutionUpdate(id=call_id, partial_result=partial):
                known = self._tools.get(call_id)
                if known is not None:
                    shown = _with(known, partial_result=partial.text[-MAX_RESULT_CHARS:])
                    messages.append(EngineAction(self._run_ref, shown, "updated"))
            case ToolExecutionEnd(id=call_id, name=name, result=result):
                known = self._tools.pop(call_id, None)
                action = known if known is not None else _action(call_id, name, {})
                meta = result_meta(name, result.details)
                text = cut(result.text, MAX_RESULT_CHARS)
                shown = _with(action, result=text, result_meta=meta)
                ok = not event.is_error and meta.get("error_type") != "command_exit"
                messages.append(EngineAction(self._run_ref, shown, "completed", ok))

    # -- the end -----------------------------------------------------------------------------

    def _error(self) -> ErrorValue:
        match self._end:
            case AgentEnd():
                if self._spent is None:
                    return None
                return {"code": self._spent.reason, "message": _text_of(self._last_answer)}
            case RunCanceled(reason="assistant_aborted"):
                return CANCELLED_BY_USER
            case RunCanceled(reason=reason):
                return f"Cancelled: {reason}"
            case RunFailed(reason="assistant_error", detail=detail):
                return _model_error(self._last_answer, detail)
            case RunFailed(reason=reason, detail=detail):
                return {"code": reason, "message": detail}
            case None:
                return "Session terminated: the agent ended without a word"


def result_meta(tool: str, details: object) -> dict[str, object]:
    """What may be told about a tool's result besides its text."""
    if not isinstance(details, Mapping):
        return {}
    meta = {key: shortened(details[key]) for key in SAFE_DETAILS if details.get(key) is not None}
    code = details.get("exit_code")
    if tool == "bash" and isinstance(code, int) and code != 0:
        meta |= {"error_type": "command_exit", "message": f"Command exited with code {code}"}
    return meta


def _action(call_id: str, name: str, args: Mapping[str, object]) -> Action:
    detail: dict[str, object] = {"name": name, "args": shortened(args)}
    return Action(
        id=f"tool_{call_id}", kind=kind_of(name), title=title_of(name, args), detail=detail
    )


def _with(action: Action, **facts: object) -> Action:
    return action.model_copy(update={"detail": {**(action.detail or {}), **facts}})


def _text_of(message: AgentMessage | None) -> str:
    if not isinstance(message, AssistantMessage):
        return ""
    return "\n".join(block.text for block in message.content if isinstance(block, TextContent))


def _model_error(message: AssistantMessage | None, detail: str) -> ErrorValue:
    """The failed call as an error value; `detail` stands in when the provider said nothing."""
    info = None if message is None else message.error
    if message is None or info is None:
        return {"code": "assistant_error", "message": detail}
    error: dict[str, object] = {
        "code": "assistant_error",
        "message": format_error(message),
        "detail": {"category": info.category, "status": info.status, "code": info.code},
    }
    if info.category == "context_length" and not is_context_overflow(error):
        error["code"] = "context_length_exceeded"
    return error
