"""The words that this app adds to the command line; each handler is imported when it is used."""

from lemon_core.commands import CommandSpec

COMMANDS = (
    CommandSpec(
        "checkpoint",
        "Show and undo what an agent changed in files.",
        "coding_agent.cli.checkpoint:app",
    ),
)
