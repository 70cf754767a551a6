"""`lemon doctor` (specification lemon_cli 2.2)."""

from __future__ import annotations

import json
import os
import stat
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from lemon_core.cli.doctor import app
from lemon_core.testing import temp_home
from lemon_core.tests.cli.commands import run_command

KEY = {"LEMON_SECRETS_MASTER_KEY": b64encode(os.urandom(32)).decode()}
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home() -> Iterator[Path]:
    with temp_home() as paths:
        yield paths.home


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """A machine on which nothing but git is installed, and a master key."""
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho git version 9\n")
    git.chmod(0o755)
    return {"PATH": str(tmp_path), **KEY}


def test_a_fault_exits_with_1_and_a_remedy(home: Path, capsys: Capture) -> None:
    assert run_command(app, home=home) == 1
    out, err = capsys.readouterr()
    assert "[fail] secrets.master_key" in out
    assert "-> lemon secrets init\n" in out
    assert "[ok]" not in out
    assert "(-v shows every check)" in out.splitlines()[-1]
    assert err == ""


def test_warnings_alone_exit_with_0(home: Path, programs: dict[str, str], capsys: Capture) -> None:
    assert run_command(app, "--verbose", home=home, environ=programs) == 0
    out = capsys.readouterr().out
    assert "[ok]   node_tools.git" in out
    assert "[warn] node_tools.node" in out
    assert "[skip] skills.directory" in out
    assert "\x1b" not in out


def test_json_is_one_document(home: Path, programs: dict[str, str], capsys: Capture) -> None:
    assert run_command(app, "--json", home=home, environ=programs) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert sorted(report) == ["checks", "overall", "summary"]
    assert report["overall"] == "warn"
    assert sum(report["summary"].values()) == len(report["checks"])
    assert sorted(report["checks"][0]) == ["message", "name", "remediation", "status"]
    assert err == ""


def test_the_project_is_the_folder_or_the_one_named(home: Path, capsys: Capture) -> None:
    project = home / "project"
    (project / ".lemon").mkdir(parents=True)
    (project / ".lemon" / "config.toml").write_text("[broken\n")
    for arguments, cwd in (((), project), (("--project-dir", "project"), home)):
        assert run_command(app, *arguments, home=home, cwd=cwd) == 1
        assert "[fail] config.project_valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bundle", "mine.zip"),
        ("--bundle-path", "mine.zip"),
        ("--bundle", "--bundle-path", "mine.zip"),
    ],
)
def test_a_bundle_goes_where_it_is_told(
    home: Path, capsys: Capture, arguments: tuple[str, ...]
) -> None:
    run_command(app, *arguments, home=home)
    target = home / "mine.zip"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert capsys.readouterr().out.splitlines()[-1] == f"Support bundle: {target}"


def test_with_json_the_bundle_is_told_on_stderr(home: Path, capsys: Capture) -> None:
    run_command(app, "--json", "--bundle", home=home)
    out, err = capsys.readouterr()
    json.loads(out)
    (bundle,) = (home / ".lemon" / "support-bundles").iterdir()
    assert err == f"lemon: the support bundle is {bundle}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("mine.zip",), "for --bundle only"),
        (("mine.zip", "--bundle", "--bundle-path", "other.zip"), "one path, not two"),
    ],
)
def test_wrong_arguments_are_told(home: Path, arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(typer.BadParameter, match=says):
        run_command(app, *arguments, home=home)
    assert list(home.iterdir()) == []


def test_looking_leaves_the_home_as_it_was(home: Path, capsys: Capture) -> None:
    run_command(app, home=home)
    assert list(home.iterdir()) == []


def test_help_names_the_options(home: Path, capsys: Capture) -> None:
    assert run_command(app, "--help", home=home) == 0
    assert "--bundle-path" in capsys.readouterr().out
