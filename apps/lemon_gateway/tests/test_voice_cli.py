"""`lemon voice secrets` (specification lemon_gateway 8)."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import anyio
from typer.testing import CliRunner, Result

from lemon_core.boot import boot
from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile, load_target
from lemon_core.secrets import SecretsError
from lemon_core.testing import scrubbed_environ
from lemon_core.testing.terminal import terminal
from lemon_gateway.cli import COMMANDS
from lemon_gateway.cli.voice import app
from lemon_gateway.voice.keys import SERVICE_KEYS

MASTER = {"LEMON_SECRETS_MASTER_KEY": base64.b64encode(bytes(32)).decode()}
PROGRAM = """
import sys
from pathlib import Path
from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_gateway.cli.voice import app
import os
home = Path(sys.argv[1])
context = CommandContext(Profile("test"), dict(os.environ), PathSettings(home), home)
app(["secrets"], obj=context)
"""


def lemon(home: Path, text: str, *, master: bool = True) -> Result:
    """`lemon voice secrets` with `text` as its standard input."""
    environ = scrubbed_environ(home, MASTER if master else None)
    context = CommandContext(Profile("test"), environ, PathSettings(home), home)
    return CliRunner().invoke(app, ["secrets"], input=text, obj=context, standalone_mode=False)


def stored(home: Path) -> dict[str, str]:
    """What is stored, by name."""

    async def read() -> dict[str, str]:
        paths, environ = PathSettings(home), scrubbed_environ(home, MASTER)
        profile = Profile("test")
        async with boot(profile, cwd=home, environ=environ, paths=paths, serve=False) as runtime:
            infos = await runtime.secrets.list()
            return {info.name: await runtime.secrets.get(info.name) for info in infos}

    return anyio.run(read)


def test_the_command_is_declared() -> None:
    """Specification lemon_cli 2.1: it comes from `<app>.cli:COMMANDS`."""
    (spec,) = COMMANDS
    assert (spec.name, load_target(spec.target)) == ("voice", app)


def test_what_is_given_is_stored_and_empty_keeps(tmp_path: Path) -> None:
    """Specification lemon_gateway 8: empty keeps, prints how many, never a value."""
    result = lemon(tmp_path, "AC-first\ntoken-first\n\nkey-eleven\n")
    assert result.return_value == 0
    assert result.stdout.strip() == "Stored 3 of 4 secrets."
    assert stored(tmp_path) == {
        "twilio_account_sid": "AC-first",
        "twilio_auth_token": "token-first",
        "elevenlabs_api_key": "key-eleven",
    }
    again = lemon(tmp_path, "\ntoken-second\n")
    assert again.stdout.strip() == "Stored 1 of 4 secrets."
    assert stored(tmp_path)["twilio_account_sid"] == "AC-first"
    assert stored(tmp_path)["twilio_auth_token"] == "token-second"
    for shown in (result, again):
        assert not any(value in shown.output for value in ("AC-first", "token", "key-eleven"))


def test_nothing_given_needs_no_master_key(tmp_path: Path) -> None:
    """Whoever only looks is not asked to make one."""
    result = lemon(tmp_path, "", master=False)
    assert (result.return_value, result.stdout.strip()) == (0, "Stored 0 of 4 secrets.")


def test_without_a_master_key_the_way_to_one_is_told(tmp_path: Path) -> None:
    """One line with what to do."""
    result = lemon(tmp_path, "AC0\n", master=False)
    assert isinstance(result.exception, SecretsError)
    assert result.exception.code == "missing_master_key"
    assert "lemon secrets init" in str(result.exception)


async def test_on_a_terminal_the_answers_are_not_shown(tmp_path: Path) -> None:
    """Specification lemon_gateway 8: hidden input."""
    environ = scrubbed_environ(tmp_path, {**MASTER, "PYTHONPATH": ":".join(sys.path)})
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with anyio.fail_after(60):
        async with terminal(command, environ) as screen:
            for name in SERVICE_KEYS:
                # The blank comes when nothing is echoed any more.
                await screen.answer(f"{name}: ", f"value-of-{name}")
            shown = await screen.wait_for("Stored 4 of 4 secrets.")
            assert await screen.end() == 0
    assert "value-of" not in shown
    assert "value-of" not in screen.raw.decode()
