"""Help and wrong arguments of every command (specification lemon_cli 1, 10.1 and 10.2)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lemon_cli.completion_command import SCRIPTS, candidates
from lemon_cli.tests.home import PROFILE, Home
from lemon_core.commands import CommandSpec

SPECS = [spec for group in PROFILE.commands.values() for spec in group]
NAMES = [spec.name for spec in SPECS]


@pytest.mark.behaviour("lemon_cli.1")
@pytest.mark.parametrize("name", NAMES)
def test_help_anywhere_touches_nothing(
    home: Home, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    usages = set()
    for argv in (
        [name, "--help"],
        [name, "-h"],
        [name, "help"],
        ["help", name],
        [name, "--no-such-option", "-h"],
        [name, "--help", "--no-such-option"],
    ):
        assert home.lemon(*argv) == 0, argv
        said = capsys.readouterr()
        assert said.err == ""
        usages.add(said.out)
    assert len(usages) == 1
    assert usages.pop().startswith(f"Usage: lemon {name} ")
    assert list(home.paths.home.iterdir()) == []


@pytest.mark.behaviour("lemon_cli.1")
@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_a_usage_error(
    home: Home, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert home.lemon(name, "--no-such-option") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"Usage: lemon {name} ")
    assert "--no-such-option" in said.err
    assert list(home.paths.home.iterdir()) == []


@pytest.mark.behaviour("lemon_cli.1")
def test_an_unknown_command_is_a_usage_error(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert home.lemon("stats") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "usage: lemon COMMAND [ARGS]...\nlemon: unknown command 'stats': did you mean 'status'?\n"
    )


def test_a_wrong_subcommand_call_names_its_own_help(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert home.lemon("secrets", "set") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lemon secrets set: Missing argument")
    assert last.endswith("(lemon secrets set --help tells more)")


@pytest.mark.parametrize("name", NAMES)
def test_a_list_of_subcommands_cuts_no_sentence(
    home: Home, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert home.lemon(name, "--help") == 0
    assert "...\n" not in capsys.readouterr().out.partition("Commands:")[2]


def test_help_of_a_subcommand_is_its_own(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        ["secrets", "set", "--help"],
        ["secrets", "help", "set"],
        ["secrets", "set", "NAME", "-h"],
        ["help", "secrets", "set"],
    ):
        assert home.lemon(*argv) == 0
        assert capsys.readouterr().out.startswith("Usage: lemon secrets set ")


def test_a_group_alone_shows_what_it_has(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert home.lemon("secrets") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Usage: lemon secrets ")
    assert said.err.count("Usage:") == 1
    assert home.lemon("secrets", "nope") == 2
    assert "No such command 'nope'" in capsys.readouterr().err


def test_help_is_a_word_of_a_prompt(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Only as the first word does it ask for usage, and after `--` nothing does."""
    for argv in (
        ["run", "--queue-mode", "odd", "please", "help", "me"],
        ["run", "--queue-mode", "odd", "--", "--help"],
    ):
        assert home.lemon(*argv) == 2
        assert "odd" in capsys.readouterr().err
    assert home.lemon("run", "help", "me") == 0


@pytest.mark.parametrize("name", ["setup", "model", "start", "daemon", "status", "completion"])
def test_help_has_examples(home: Home, capsys: pytest.CaptureFixture[str], name: str) -> None:
    home.lemon(name, "--help")
    _, _, below = capsys.readouterr().out.partition("\n  Examples:\n")
    assert f"lemon {name}" in below.splitlines()[0]


@pytest.mark.behaviour("lemon_cli.2")
@pytest.mark.parametrize(
    "command",
    [
        "status",
        "version",
        "models",
        "models --provider openai --limit 2",
        "providers",
        "sessions list",
        "runs list",
        "secrets status",
        "secrets list",
        "secrets check",
        "secrets import-env",
        "doctor",
        "readiness",
        "usage",
        "introspection",
        "config validate",
        "config show",
    ],
)
def test_json_is_one_document(home: Home, capsys: pytest.CaptureFixture[str], command: str) -> None:
    home.lemon("setup", "-n")
    capsys.readouterr()
    assert home.lemon(*command.split(), "--json") in (0, 1)
    json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.name not in ("run", "chat")])
def test_a_command_imports_neither_router_nor_gateway(spec: CommandSpec) -> None:
    """Specification lemon_cli 10.3, as far as importing the handlers goes."""
    code = (
        f"import sys; from lemon_core.profiles import load_target; load_target({spec.target!r});"
        "print(*sorted({m.partition('.')[0] for m in sys.modules} & "
        "{'lemon_router', 'lemon_gateway', 'coding_agent', 'grpc', 'aiohttp', 'rich'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "\n"


# -- completion --------------------------------------------------------------------------------


def words(*typed: str) -> list[str]:
    return [word for word, _ in candidates(PROFILE, typed)]


def test_candidates() -> None:
    assert words("") == NAMES
    assert words("sta") == ["start", "status"]
    assert words("secrets", "s") == ["status", "set"]
    assert words("secrets", "set", "--std") == ["--stdin"]
    assert "--help" in words("run", "--")
    assert words("nobody", "") == []


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_the_script_is_printed(home: Home, capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert home.lemon("completion", shell) == 0
    assert capsys.readouterr().out == SCRIPTS[shell]
    assert home.lemon("completion", "powershell") == 2
    assert list(home.paths.home.iterdir()) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes(home: Home, tmp_path: Path) -> None:
    program = tmp_path / "lemon"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\n"
        "from lemon_cli.tests.home import PROFILE\nfrom lemon_cli.main import main\n"
        "main(PROFILE)\n"
    )
    program.chmod(0o755)
    script = (
        f'eval "$({program} completion bash)"\n'
        f"COMP_WORDS=({program} secrets se) COMP_CWORD=2\n_lemon_completion\n"
        'echo "${COMPREPLY[@]}"\n'
        f"COMP_WORDS=({program} dae) COMP_CWORD=1\n_lemon_completion\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**home.environ, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "set\ndaemon\n"
    assert done.stderr == ""
