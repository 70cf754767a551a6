"""The words that this app adds to the command line; each handler is imported when it is used."""

from lemon_core.commands import CommandSpec

COMMANDS = (
    CommandSpec(
        "providers",
        "Show which model providers are ready.",
        "lemon_agent.cli.providers:app",
    ),
    CommandSpec(
        "workspace",
        "Look after the assistant's own files.",
        "lemon_agent.cli.workspace:app",
    ),
)
