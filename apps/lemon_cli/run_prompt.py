"""One run, wherever it happens: in a running server, or in a runtime booted for it."""

from __future__ import annotations

import signal
from contextlib import aclosing
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus

from lemon_cli.access import Refused, RunAccess, open_access
from lemon_cli.errors import CliError, ExitCode
from lemon_cli.render import Renderer, failure
from lemon_core.bridges import SubmitResult
from lemon_core.commands import CommandContext
from lemon_core.events import Completion, RunCompleted
from lemon_core.runs import RunRequest
from lemon_core.single_errors import single_errors

ABORT_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What bounds a run."""

    timeout_ms: int


@dataclass(slots=True)
class Progress:
    """What has become of the run so far."""

    completed: Completion | None = None
    interrupted: bool = False


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
                async with anyio.create_task_group() as tasks:
                    # Listening before anything is shown: whoever sees a sign of life may interrupt.
                    await tasks.start(_watch_signals, access, request, progress, scope)
                    try:
                        await _follow(access, request, renderer, progress)
                    finally:
                        if progress.completed is None:
                            await _abort(access, request, limit)
                    tasks.cancel_scope.cancel()
    # Not `cancelled_caught`: a runtime that stops at this moment may end the block by itself.
    timed_out = limit.cancel_called and progress.completed is None
    return _exit_code(progress, renderer, timed_out=timed_out)


async def _follow(
    access: RunAccess, request: RunRequest, renderer: Renderer, progress: Progress
) -> None:
    try:
        async with aclosing(access.run(request)) as events:
            async for event in events:
                if isinstance(event.payload, RunCompleted):
                    progress.completed = event.payload.completed
                renderer.event(event)
                if progress.completed is not None:
                    return
    except Refused as exc:
        raise _refusal(exc.result) from exc


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
    renderer.note(f"the run failed: {failure(completed)}")
    error = completed.error
    code = error.get("code") if isinstance(error, dict) else error
    return ExitCode.USAGE if code == "unknown_model" else ExitCode.FAILED
