"""The agent loop: model call, tools, next turn, until nothing is pending.

Plain functions over a `RunRecord`. Every event goes through the record's `emit`, and whatever
breaks (the model, a tool, a hook, the task itself) a run ends with exactly one terminal event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import anyio

from lemon_agent.compaction import ContextTooLarge, compact
from lemon_agent.errors import CannotContinue, NoMessages
from lemon_agent.events import (
    AgentEnd,
    AgentStart,
    LoopBudgetExhausted,
    RunCanceled,
    RunFailed,
    SchemaSnapshotTaken,
    TurnEnd,
    TurnStart,
)
from lemon_agent.loop_detection import STOP_AT
from lemon_agent.model_call import Answer, blank_answer, call_model
from lemon_agent.run_record import Emit, RunRecord
from lemon_agent.signal import AbortSignal
from lemon_agent.states import LoopState
from lemon_agent.tool_calls import ToolBatch, run_tool_calls
from lemon_agent.types import AgentContext, AgentMessage, LoopConfig, QueuedMessage
from lemon_ai import AssistantMessage, TextContent, get_tool_calls
from lemon_ai.errors import is_context_overflow
from lemon_core.logs import get_logger

log = get_logger(__name__)

Step = Literal["stopped", "again", "answered"]

_NOTICES: Final = {
    "max_tool_turns_exhausted": "I stopped here: the limit of {limit:g} tool turns is used up.",
    "max_tokens_exhausted": "I stopped here: this run's limit of {limit:g} tokens is used up.",
    "max_cost_usd_exhausted": "I stopped here: this run's limit of {limit:g} USD is used up.",
    "max_tool_calls_exhausted": "I stopped here: the limit of {limit:g} tool calls is used up.",
}


async def run_loop(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: LoopConfig,
    signal: AbortSignal,
    emit: Emit,
) -> list[AgentMessage]:
    """Answer these prompts; the messages that the run created, the prompts included.

    `emit` gets every event in order and must not raise. Returns when nothing of the run is left,
    which may be later than the terminal event when an aborted tool still cleans up. Raises
    ValueError when the tools cannot be used together; nothing has been emitted then.
    """
    run = RunRecord.begin(context, config, signal, emit)
    async with anyio.create_task_group() as run.background:
        try:
            await _drive(run, prompts)
        except anyio.get_cancelled_exc_class():
            run.finish(RunCanceled("task_cancelled", run.created()))
            raise
        except Exception as exc:  # a fault of the loop is an event of its run too
            log.exception("loop.crashed")
            run.finish(RunFailed("loop_crashed", f"{type(exc).__name__}: {exc}", run.created()))
            run.background.cancel_scope.cancel()
    return run.new_messages


async def continue_loop(
    context: AgentContext, config: LoopConfig, signal: AbortSignal, emit: Emit
) -> list[AgentMessage]:
    """Answer the history as it is. Raises `NoMessages`, or `CannotContinue` after an answer."""
    if not context.messages:
        raise NoMessages
    if context.messages[-1].role == "assistant":
        raise CannotContinue("the last message is an answer: send a prompt")
    return await run_loop((), context, config, signal, emit)


async def _drive(run: RunRecord, prompts: Sequence[AgentMessage]) -> None:
    run.emit(AgentStart())
    run.emit(SchemaSnapshotTaken(run.snapshot))
    run.emit(TurnStart())
    run.move(LoopState.INITIALIZING)
    for prompt in prompts:
        run.add(prompt)
    pending = _drain_steering(run)
    while True:
        _deliver(run, pending)
        if spent := run.tally.spent(run.config.budget, run.config.spent_elsewhere):
            _stop_spent(run, spent)
            return
        step = await _turn(run)
        if step == "stopped":
            return
        pending = _drain_steering(run)
        if step == "answered" and not pending:
            pending = await _drain_follow_ups(run)
            if not pending:
                run.move(LoopState.FINALIZING)
                run.finish(AgentEnd(run.created()))
                return
        run.emit(TurnStart())


async def _turn(run: RunRecord) -> Step:
    """One model call with its tools; `stopped` when the terminal event is out."""
    if too_large := await compact(run):
        return _stop_too_large(run, too_large)
    run.move(LoopState.AWAIT_MODEL)
    answer = await call_model(run)
    if run.config.compact is not None and _overflowed(answer.message):
        # Kept in the history, as every answer that was announced; no model is shown it.
        run.keep(answer.message, in_context=False)
        if too_large := await compact(run, forced=True):
            return _stop_too_large(run, too_large)
        if run.state is not LoopState.AWAIT_MODEL:
            run.move(LoopState.AWAIT_MODEL)
        answer = await call_model(run)
    message = answer.message
    # A redirected partial stays in the history, but the model is not shown it in this run.
    run.keep(message, in_context=message.stop_reason != "redirected")
    match message.stop_reason:
        case "aborted":
            return _stop_aborted(run, TurnEnd(message))
        case "error":
            return _stop_failed(run, answer)
        case _:
            run.move(LoopState.NORMALIZING_RESPONSE)
    if get_tool_calls(message):
        return await _tools(run, message)
    run.emit(TurnEnd(message))
    return "again" if message.stop_reason == "redirected" else "answered"


async def _tools(run: RunRecord, message: AssistantMessage) -> Step:
    run.move(LoopState.EXECUTING_TOOLS)
    batch = await run_tool_calls(run, message)
    end = TurnEnd(message, tuple(batch.results))
    if run.signal.aborted:
        return _stop_aborted(run, end)
    run.move(LoopState.AWAITING_TOOL_RESULTS)
    run.emit(end)
    if batch.looping is not None:
        return _stop_looping(run, batch)
    run.tool_turns += 1
    limit = run.config.max_tool_turns
    if limit is not None and run.tool_turns >= limit:
        spent = LoopBudgetExhausted("max_tool_turns_exhausted", limit, run.tool_turns)
        return _stop_spent(run, spent)
    return "again"


# -- queues ----------------------------------------------------------------------------------


def _drain_steering(run: RunRecord) -> Sequence[QueuedMessage]:
    # The flag is cleared before the drain and only here: a redirect that comes after it has queued
    # its message too late for this drain, and must still cancel the call that follows.
    run.signal.clear_redirect()
    drain = run.config.get_steering_messages
    return () if drain is None or run.signal.aborted else drain()


async def _drain_follow_ups(run: RunRecord) -> Sequence[QueuedMessage]:
    drain = run.config.get_follow_up_messages
    if drain is None or run.signal.aborted:
        return ()
    queued = await drain()
    if queued:
        run.tool_turns = 0
        run.guard.reset()
    return queued


def _deliver(run: RunRecord, pending: Sequence[QueuedMessage]) -> None:
    for queued in pending:
        run.add(queued.message)
        run.system_prompt = queued.system_prompt or run.system_prompt


# -- ends ------------------------------------------------------------------------------------


def _stop_aborted(run: RunRecord, end: TurnEnd) -> Step:
    run.emit(end)
    run.move(LoopState.ABORTED)
    run.finish(RunCanceled("assistant_aborted", run.created()))
    return "stopped"


def _stop_failed(run: RunRecord, answer: Answer) -> Step:
    run.move(LoopState.RECOVERING_PROVIDER_ERROR)
    run.emit(TurnEnd(answer.message))
    run.move(LoopState.FINALIZING)
    detail = answer.message.error_message or "the model call failed"
    run.finish(RunFailed(answer.failure, detail, run.created()))
    return "stopped"


def _stop_too_large(run: RunRecord, found: ContextTooLarge) -> Step:
    if run.state is not LoopState.COMPRESSING_CONTEXT:
        run.move(LoopState.COMPRESSING_CONTEXT)
    run.move(LoopState.RECOVERING_PROVIDER_ERROR)
    run.move(LoopState.FINALIZING)
    run.finish(RunFailed("context_too_large", found.detail, run.created()))
    return "stopped"


def _overflowed(message: AssistantMessage) -> bool:
    """Whether the request was refused for its length, before anything was answered."""
    return message.stop_reason == "error" and not message.content and is_context_overflow(message)


def _stop_looping(run: RunRecord, batch: ToolBatch) -> Step:
    name = batch.looping.name if batch.looping else ""
    run.move(LoopState.FINALIZING)
    detail = f"tool {name} failed {STOP_AT} times in a row with the same arguments and error"
    run.finish(RunFailed("loop_detected", detail, run.created()))
    return "stopped"


def _stop_spent(run: RunRecord, spent: LoopBudgetExhausted) -> Step:
    run.move(LoopState.FINALIZING)
    run.emit(spent)
    text = _NOTICES[spent.reason].format(limit=spent.limit)
    notice = {
        "content": [TextContent(text=text)],
        "stop_reason": "error",
        "error_message": spent.reason,
    }
    run.add(blank_answer(run).model_copy(update=notice))
    run.finish(AgentEnd(run.created()))
    return "stopped"
