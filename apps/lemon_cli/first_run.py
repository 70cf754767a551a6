"""What a launch does before anything else: setup, when it is needed and a person can answer."""

from __future__ import annotations

import sys

from lemon_cli.errors import ExitCode
from lemon_core.commands import CommandContext


def ensure_set_up(context: CommandContext) -> bool:
    """Whether Lemon may be started: set up already, or by the setup that runs here.

    Without a terminal nothing is asked, and one line says what to do.
    """
    import anyio

    from lemon_cli.setup_state import setup_required
    from lemon_cli.setup_wizard import Options, run_setup
    from lemon_cli.ui import Ui

    if not anyio.run(setup_required, context):
        return True
    ui = Ui.of(context.environ)
    if not ui.interactive:
        print("lemon: Lemon is not set up yet: run lemon setup", file=sys.stderr)
        return False
    code = run_setup(context, ui, Options(is_launch=True))
    if code != ExitCode.OK or anyio.run(setup_required, context):
        return False
    ui.say()
    return True
