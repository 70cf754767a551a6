"""The fake app's commands."""

from lemon_core.commands import CommandSpec

COMMANDS = (CommandSpec("say", "Say something", "lemon_core.tests.fake_app.cli:COMMANDS"),)
