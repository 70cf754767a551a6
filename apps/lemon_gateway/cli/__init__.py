"""The words that this app adds to the command line; each handler is imported when it is used."""

from lemon_core.commands import CommandSpec

COMMANDS = (
    CommandSpec("voice", "Store the keys that phone calls need.", "lemon_gateway.cli.voice:app"),
)
