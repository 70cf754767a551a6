"""Being the server: waiting for the state directory, the runtime, what is printed, the end."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import cast

import anyio

from lemon_cli.errors import CliError, ExitCode
from lemon_cli.lifecycle import Record, remove_record, write_record
from lemon_cli.output_file import OutputFile
from lemon_core.boot import boot
from lemon_core.bridges import MODEL_INFO, ModelInfo
from lemon_core.clock import SystemClock
from lemon_core.commands import CommandContext
from lemon_core.runtime import Runtime
from lemon_core.single_errors import single_errors
from lemon_core.state_lock import Holder, RuntimeBusy
from lemon_core.version import __version__

BUSY_WAIT_S = 60.0
BUSY_POLL_S = 0.2
# A run makes and drops some hundred objects and hardly a cycle: with Python's own threshold of 700
# the search for cycles took a tenth of the server's time.
GC_THRESHOLDS = (20_000, 20, 50)


async def serve(context: CommandContext, output: OutputFile | None) -> int:
    """Be the server until a signal comes; raises `CliError` when somebody else stays it too long.

    `output` is looked after meanwhile.
    """
    deadline: float | None = None
    while True:
        try:
            return await _serve(context, output)
        except RuntimeBusy as exc:
            if await _running(context, exc.holder):
                return ExitCode.OK
            if deadline is None:
                deadline = anyio.current_time() + BUSY_WAIT_S
                print(f"lemon: {exc}; waiting", file=sys.stderr, flush=True)
            elif anyio.current_time() > deadline:
                raise CliError(f"{exc} (waited {BUSY_WAIT_S:.0f} s)") from exc
        # The lock has no event to wait for; this is the schedule of looking at it again.
        await anyio.sleep(BUSY_POLL_S)


async def _running(context: CommandContext, holder: Holder | None) -> bool:
    from lemon_core.rpc.running import running  # grpc is heavy

    if await running(context.paths, clock=SystemClock()) is None:
        return False
    process = "" if holder is None else f" (process {holder.pid})"
    print(f"Lemon is running already{process}: lemon run talks to it.")
    return True


async def _serve(context: CommandContext, output: OutputFile | None) -> int:
    """The server until a signal comes."""
    with single_errors():
        async with anyio.create_task_group() as tasks:
            if output is not None:
                tasks.start_soon(output.serve, SystemClock())
            await _until_signal(context)
            tasks.cancel_scope.cancel()
    print("Lemon has stopped.", flush=True)
    return ExitCode.OK


async def _until_signal(context: CommandContext) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with boot(
            context.profile,
            cwd=context.cwd,
            environ=context.environ,
            paths=context.paths,
            serve=True,
        ) as runtime:
            # What is there now stays until the end: the collector need not look at it again.
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            write_record(context.paths, _record(runtime))
            print(await _banner(runtime), flush=True)
            async for _ in signals:
                print("Lemon is stopping.", flush=True)
                remove_record(context.paths)
                break


def _record(runtime: Runtime) -> Record:
    holder = runtime.lock.holder
    return Record(
        pid=holder.pid,
        started_at_ms=holder.started_at_ms,
        version=__version__,
        profile=runtime.profile.name,
        root=str(Path(__file__).resolve().parents[2]),
        listening=dict(runtime.listening),
    )


async def _banner(runtime: Runtime) -> str:
    """What a person needs to know first: where it listens, which model answers, what to type."""
    rows = list(runtime.listening.items())
    info = cast("ModelInfo | None", runtime.capabilities.get(MODEL_INFO))
    if info is not None:
        rows.append(("model", await info.describe_default()))
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"Lemon {__version__} is running (process {os.getpid()})."]
    lines += [f"  {name:<{width}}  {text}" for name, text in rows]
    lines += [f"  {'warning':<{width}}  {text}" for text in runtime.warnings]
    command = "lemon"
    if runtime.environ.get("BUILD_WORKSPACE_DIRECTORY"):
        command = "tools/bazelw run //apps/lemon_cli:lemon --"
    lines.append(f'In another terminal: {command} run "Say hello"    (Ctrl-C stops the server)')
    return "\n".join(lines)
