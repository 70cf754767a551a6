"""`lemon stop` and `lemon restart`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lemon_core.cli.base import command_app, command_context, note

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext

stop_app = command_app("End the Lemon server.")
restart_app = command_app("End the Lemon server and start it in the background.")


@stop_app.command("stop")
def stop_command(ctx: typer.Context) -> int:
    """End the Lemon server; live runs are ended in order first.

    One that does not end within 15 seconds is killed. Nothing to end is no failure.
    """
    _stop(command_context(ctx))
    return 0


@restart_app.command("restart")
def restart_command(ctx: typer.Context) -> int:
    """End the Lemon server and start it again in the background.

    Where systemd keeps Lemon (lemon daemon install), systemd starts it.
    """
    from lemon_cli import systemd
    from lemon_cli.daemon_command import start_daemon

    context = command_context(ctx)
    profile = _profile(context)
    _stop(context)
    if systemd.unit_file(context).exists():
        systemd.start(context)
        print("systemd starts Lemon.")
        return 0
    options = [] if profile in (None, context.profile.name) else ["--profile", profile or ""]
    return start_daemon(context, options)


def _profile(context: CommandContext) -> str | None:
    """The profile of the server that runs: its successor gets the same."""
    from lemon_cli.lifecycle import read_record
    from lemon_core.state_lock import read_holder

    holder = read_holder(context.paths.runtime_lock)
    record = None if holder is None else read_record(context.paths, holder)
    return None if record is None else record.profile


def _stop(context: CommandContext) -> None:
    import anyio

    from lemon_cli.lifecycle import stop
    from lemon_core.clock import SystemClock

    done = anyio.run(stop, context.paths, SystemClock())
    if done.holder is None:
        note("Lemon is not running")
        return
    how = "killed: it did not end by itself" if done.was_killed else "stopped"
    what = "one-shot run" if done.holder.kind == "one_shot" else "server"
    print(f"The {what} (pid {done.holder.pid}) was {how}.")
