"""One run, wherever it happens: in a running server, or in a runtime booted for it."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus

from lemon_cli.access import Refused, RunAccess, open_access
from lemon_cli.ask import Asker
from lemon_cli.errors import CliError, ExitCode
from lemon_cli.render import Renderer, failure
from lemon_cli.run_notes import NOT_TAKEN, absorbed_note, taken_note
from lemon_core.bridges import SubmitResult
from lemon_core.commands import CommandContext
from lemon_core.events import (
    Completion,
    EngineAction,
    Event,
    RunAbsorbed,
    RunCompleted,
    RunPhaseChanged,
)
from lemon_core.runs import RunRequest
from lemon_core.single_errors import single_errors

ABORT_WAIT_S = 5.0
# Ends that somebody wanted.
ENDED_BY = {
    "user_requested": "the run was aborted",
    "interrupted": "the run was interrupted by a newer message",
    "new_session": "the run was ended: its session starts over",
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What bounds a run, and who answers what it asks: nobody, others, or this `terminal`."""

    timeout_ms: int
    asks: bool = False
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """Where events go: to the screen, and to whoever answers questions."""

    renderer: Renderer
    asker: Asker | None

    def event(self, event: Event) -> None:
        """Show one event, and ask what it asks."""
        self.renderer.event(event)
        if self.asker is not None and isinstance(event.payload, EngineAction):
            self.asker.step(event.payload)


@dataclass(slots=True)
class Progress:
    """What has become of the run so far."""

    completed: Completion | None = None
    interrupted: bool = False
    # The message became part of another run, which is not this command's to abort.
    absorbed: bool = False
    offered: bool = False


async def run_prompt(
    request: RunRequest, options: RunOptions, context: CommandContext, renderer: Renderer
) -> int:
    """Submit `request`, show its events until its end, and return the exit code.

    Ctrl-C aborts the run and waits for its end; a second one leaves at once. Raises `CliError`.
    """
    progress = Progress()
    with single_errors(), anyio.move_on_after(options.timeout_ms / 1000) as limit:
        async with open_access(context, renderer.note) as access:
            with anyio.CancelScope() as scope:
                request = _asking(request, options, access)
                async with anyio.create_task_group() as tasks:
                    asker = Asker(tasks, access) if options.terminal else None
                    # Listening before anything is shown: whoever sees a sign of life may interrupt.
                    await tasks.start(_watch_signals, access, request, progress, scope)
                    try:
                        await _follow(access, request, Shown(renderer, asker), progress)
                    finally:
                        if progress.completed is None and not progress.absorbed:
                            await _abort(access, request, limit)
                    tasks.cancel_scope.cancel()
    # Not `cancelled_caught`: a runtime that stops at this moment may end the block by itself.
    timed_out = limit.cancel_called and progress.completed is None
    return _exit_code(progress, renderer, timed_out=timed_out)


async def send_prompt(request: RunRequest, context: CommandContext, renderer: Renderer) -> int:
    """Submit `request` to the running server, print its id, and leave it to itself.

    What a run asks can be answered from anywhere then. Raises `CliError`.
    """
    from lemon_cli.work_access import open_server  # the other way needs no server

    async with open_server(context) as client:
        result = await client.submit_run(request)
    if result.status != "accepted":
        raise _refusal(result)
    note = taken_note(result, request.queue_mode)
    if note is not None:
        renderer.note(note)
    print(result.run_id)
    return ExitCode.OK


def _asking(request: RunRequest, options: RunOptions, access: RunAccess) -> RunRequest:
    """`request` so that the run asks, where somebody can answer."""
    if not (options.asks and (options.terminal or access.answerable)):
        return request
    return request.model_copy(update={"meta": {**request.meta, "approvals": "ask"}})


async def _follow(access: RunAccess, request: RunRequest, shown: Shown, progress: Progress) -> None:
    """Show the run to its end, or that of the run that took its message."""

    def taken(result: SubmitResult) -> None:
        note = taken_note(result, request.queue_mode)
        if note is not None:
            shown.renderer.note(note)
        progress.offered = (result.detail or {}).get("disposition") == "steering"

    try:
        absorbed_by = await _show(access.run(request, taken), shown, progress)
    except Refused as exc:
        raise _refusal(exc.result) from exc
    while absorbed_by is not None:
        absorbed_by = await _show(access.follow(absorbed_by), shown, progress)


async def _show(
    events: AsyncGenerator[Event, None], shown: Shown, progress: Progress
) -> str | None:
    """Show `events` until the run's end; the run that goes on with it, if it was absorbed."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event.payload, RunCompleted):
                progress.completed = event.payload.completed
            shown.event(event)
            match event.payload:
                case RunCompleted():
                    return None
                case RunAbsorbed(absorbed_by=absorbed_by):
                    progress.absorbed = True
                    shown.renderer.note(absorbed_note(event.payload))
                    return absorbed_by
                case RunPhaseChanged(phase="queued_in_session") if progress.offered:
                    progress.offered = False
                    shown.renderer.note(NOT_TAKEN)
                case _:
                    pass
    return None


async def _watch_signals(
    access: RunAccess,
    request: RunRequest,
    progress: Progress,
    scope: anyio.CancelScope,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if progress.interrupted:
                scope.cancel()
                return
            progress.interrupted = True
            if progress.absorbed:
                scope.cancel()
                return
            assert request.run_id is not None  # the command fixed it
            await access.abort(request.run_id, "user_requested")


async def _abort(access: RunAccess, request: RunRequest, limit: anyio.CancelScope) -> None:
    """A run that nobody waits for any more must not go on working."""
    assert request.run_id is not None  # the command fixed it
    with anyio.move_on_after(ABORT_WAIT_S, shield=True):
        reason = "timeout" if limit.cancel_called else "user_requested"
        await access.abort(request.run_id, reason)


def _refusal(result: SubmitResult) -> CliError:
    detail = (result.detail or {}).get("message")
    message = str(detail or result.reason or result.status)
    usage = {"invalid_session_key", "unknown_agent_id", "empty_prompt", "invalid_cwd"}
    code = ExitCode.USAGE if result.reason in usage else ExitCode.FAILED
    return CliError(message, code)


def _exit_code(progress: Progress, renderer: Renderer, *, timed_out: bool) -> int:
    completed = progress.completed
    if progress.interrupted:
        renderer.note("interrupted")
        return ExitCode.INTERRUPTED
    if timed_out or completed is None:
        renderer.note("timed out" if timed_out else "the run ended without an answer")
        return ExitCode.TIMED_OUT if timed_out else ExitCode.FAILED
    if completed.ok:
        return ExitCode.OK
    error = completed.error
    code = error.get("code") if isinstance(error, dict) else error
    renderer.note(ENDED_BY.get(str(code)) or f"the run failed: {failure(completed)}")
    return ExitCode.USAGE if code == "unknown_model" else ExitCode.FAILED
