"""The `lemon` command."""

from lemon_cli.errors import CliError

__all__ = ["CliError"]
