"""`lemon daemon`: the server in the background, by itself or as a unit of systemd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lemon_cli.examples import examples
from lemon_core.cli.base import command_context, note

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext
    from lemon_core.state_lock import Holder

LOCK_WAIT_MS: Final = 15_000
HEALTHY_WAIT_MS: Final = 30_000
END_WAIT_S: Final = 20.0
TOLD_LINES: Final = 20

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=examples("lemon daemon", "lemon daemon install", "lemon daemon logs --lines 100"),
)


@app.callback(invoke_without_command=True)
def daemon(
    ctx: typer.Context,
    profile: Annotated[str | None, typer.Option("--profile", help="As in lemon start.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="As in lemon start.")] = False,
) -> int:
    """Start the Lemon server in the background, and print its process id once it answers.

    What it prints goes to ~/.lemon/run/lemon.log.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    options = [*(["--profile", profile] if profile else []), *(["--debug"] if debug else [])]
    return start_daemon(command_context(ctx), options)


@app.command()
def install(ctx: typer.Context) -> int:
    """Have systemd start Lemon with every login, and start it now unless it runs.

    The variables of this shell do not reach it: lemon secrets import-env stores keys.
    """
    import anyio

    from lemon_cli import systemd
    from lemon_cli.lifecycle import find_status, launcher
    from lemon_core.clock import SystemClock

    context = command_context(ctx)
    command = [*launcher(context.paths), "start", "--log-file", str(log_path(context))]
    context.paths.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = systemd.install(context, command)
    print(f"Wrote {path}.")
    status = anyio.run(find_status, context.paths, SystemClock())
    if status.state == "not_running":
        systemd.start(context)
        print("Lemon starts now, and with every login.")
    else:
        print(f"Lemon starts with every login. Now: {status}; lemon restart hands it to systemd.")
    return 0


@app.command()
def uninstall(ctx: typer.Context) -> int:
    """Take Lemon out of systemd, and stop it there."""
    from lemon_cli import systemd

    context = command_context(ctx)
    if systemd.uninstall(context):
        print(f"Removed {systemd.unit_file(context)}.")
    else:
        note("there is no unit: lemon daemon install makes one")
    return 0


@app.command()
def logs(
    ctx: typer.Context,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many lines.")] = 50,
) -> int:
    """Show the end of what the background server printed."""
    from lemon_cli.output_file import last_lines

    path = log_path(command_context(ctx))
    if not path.exists():
        note(f"there is no {path}: lemon daemon starts the server in the background")
        return 1
    for line in last_lines(path, lines):
        print(line)
    return 0


def log_path(context: CommandContext) -> Path:
    """Where a background server prints."""
    return context.paths.run_dir / "lemon.log"


def start_daemon(context: CommandContext, options: list[str]) -> int:
    """Start the server as a process of its own session; 1 with the end of its log when it fails."""
    import anyio

    from lemon_cli.lifecycle import find_status, tighten
    from lemon_core.clock import SystemClock
    from lemon_core.state_lock import private_dir

    status = anyio.run(find_status, context.paths, SystemClock())
    if status.state == "running":
        print(f"Lemon is running already (pid {status.pid}).")
        return 0
    private_dir(context.paths.run_dir)
    tighten(context.paths)
    log = log_path(context)
    begin = log.stat().st_size if log.exists() else 0
    child = _spawn(context, log, options)
    holder = anyio.run(_started, context, child)
    if holder is None:
        return _failed(child, log, begin)
    print(f"Lemon is running in the background (pid {holder.pid}).")
    print(f"Its output: {log}    (lemon daemon logs shows the end; lemon stop ends it)")
    child.returncode = 0  # it outlives this process on purpose, which Popen would warn about
    return 0


def _spawn(context: CommandContext, log: Path, options: list[str]) -> subprocess.Popen[bytes]:
    from lemon_cli.lifecycle import launcher
    from lemon_cli.output_file import open_output

    command = [*launcher(context.paths), "start", "--log-file", str(log), *options]
    # What it prints before it takes the file itself goes there too.
    with open(open_output(log), "ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=context.cwd,
            env=dict(context.environ),
            start_new_session=True,
        )


async def _started(context: CommandContext, child: subprocess.Popen[bytes]) -> Holder | None:
    """Who answers, when the server came up in time."""
    from lemon_core.clock import SystemClock
    from lemon_core.rpc.running import POLL_MS, running
    from lemon_core.state_lock import read_holder

    clock = SystemClock()
    began, healthy_until = clock.monotonic_ms(), None
    while child.poll() is None:
        now, holder = clock.monotonic_ms(), read_holder(context.paths.runtime_lock)
        if holder is not None and holder.pid == child.pid:
            healthy_until = healthy_until or now + HEALTHY_WAIT_MS
            if await running(context.paths, clock) is not None:
                return holder
        if now > (healthy_until or began + LOCK_WAIT_MS):
            return None
        # A server that starts has no event to wait for; this is the schedule of looking again.
        await clock.sleep(POLL_MS // 2)
    return await running(context.paths, clock)


def _failed(child: subprocess.Popen[bytes], log: Path, begin: int) -> int:
    from lemon_cli.output_file import last_lines

    if child.poll() is None:
        note(f"the server (pid {child.pid}) did not come up in time; it is ended")
        child.terminate()
        try:
            child.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    else:
        note(f"the server ended at once (exit {child.returncode})")
    for line in last_lines(log, TOLD_LINES, start=begin):
        print(f"  {line}", file=sys.stderr)
    note(f"all of it is in {log}")
    return 1
