"""The words that this app adds to the command line; each handler is imported when it is used."""

from lemon_core.commands import CommandSpec

COMMANDS = (
    CommandSpec(
        "config",
        "Check and show the configuration, and trust a project's.",
        "lemon_core.cli.config:app",
    ),
    CommandSpec("secrets", "Store API keys and tokens, encrypted.", "lemon_core.cli.secrets:app"),
    CommandSpec(
        "doctor", "Look for what would keep Lemon from working.", "lemon_core.cli.doctor:app"
    ),
    CommandSpec(
        "readiness", "Say in a few lines whether Lemon is ready.", "lemon_core.cli.readiness:app"
    ),
    CommandSpec("usage", "Show tokens and cost.", "lemon_core.cli.usage:app"),
    CommandSpec(
        "introspection", "Show recorded events of runs.", "lemon_core.cli.introspection:app"
    ),
    CommandSpec("store", "Look after the database.", "lemon_core.cli.store:app"),
    CommandSpec("extension", "Check an extension's manifest.", "lemon_core.cli.extension:app"),
    CommandSpec(
        "update", "Install a newer release, or go back to the last.", "lemon_core.cli.update:app"
    ),
    CommandSpec("quality", "Run the repository's own checks.", "lemon_core.cli.quality:app"),
    CommandSpec(
        "architecture-docs",
        "Write or check the table of app boundaries.",
        "lemon_core.cli.architecture_docs:app",
    ),
)
