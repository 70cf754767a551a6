"""The top level of the command line (specification lemon_cli 1; DESIGN ruling 36)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lemon_cli.cli import COMMANDS
from lemon_cli.main import run
from lemon_core.commands import CommandSpec
from lemon_core.profiles import Profile
from lemon_core.version import __version__

PROFILE = Profile(
    name="test",
    commands={
        "lemon_cli": COMMANDS,
        "elsewhere": (CommandSpec("gone", "Not here.", "not_installed.cli:app"),),
    },
)


def test_version_and_help_need_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], profile=PROFILE) == 0
    assert capsys.readouterr().out == f"lemon {__version__}\n"
    for argv in (["--help"], ["-h"], ["help"]):
        assert run(argv, profile=PROFILE) == 0
        text = capsys.readouterr().out
        for spec in COMMANDS:
            assert spec.name in text
            assert spec.summary in text


def test_without_arguments_usage_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([], profile=PROFILE) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("usage: lemon")


@pytest.mark.parametrize("argv", [["run", "--help"], ["help", "run"]])
def test_help_of_a_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv, profile=PROFILE) == 0
    assert "--session" in capsys.readouterr().out


def test_a_command_of_an_absent_app_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gone"], profile=PROFILE) == 1
    assert capsys.readouterr().err == "lemon: gone is not part of this installation\n"


@pytest.mark.behaviour("lemon_cli.24")
def test_the_top_level_imports_nothing_heavy() -> None:
    code = (
        "import sys; from lemon_cli.main import run; from lemon_core.profiles import Profile;"
        "run(['--version'], profile=Profile(name='x')); run(['--help'], profile=Profile(name='x'));"
        "print(*sorted(m for m in ('typer', 'rich', 'pydantic', 'anyio', 'asyncio', 'grpc')"
        " if m in sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.splitlines()[-1] == ""
