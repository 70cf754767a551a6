"""The words that this app adds to the command line; each handler is imported when it is used."""

from lemon_core.commands import CommandSpec

COMMANDS = (
    CommandSpec(
        "feedback",
        "Show how well models did, by kind of task.",
        "lemon_router.cli.feedback:app",
    ),
)
