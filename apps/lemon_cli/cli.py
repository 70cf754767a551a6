"""The words that this app adds to the command line."""

from lemon_core.commands import CommandSpec

COMMANDS = (
    CommandSpec(
        "run",
        "Send one prompt and stream the answer.",
        "lemon_cli.run_command:app",
        needs_runtime=True,
    ),
    CommandSpec(
        "start",
        "Run the Lemon server in the foreground.",
        "lemon_cli.start_command:app",
        needs_runtime=True,
    ),
)
