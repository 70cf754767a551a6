"""`lemon checkpoint` (specification coding_agent 9)."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner, Result

from coding_agent.cli import COMMANDS
from coding_agent.cli.checkpoint import app
from coding_agent.tests.harness import call, details, tool_env
from coding_agent.tools.files import WRITE
from lemon_core.checkpoint_folder import CheckpointFolder
from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile, load_target


class Home:
    """A user with a project in which an agent has written two files."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "work"
        self.paths = PathSettings(folder, checkpoints=folder / "work-kept" / "checkpoints")

    def lemon(self, *words: str, cwd: Path | None = None) -> Result:
        context = CommandContext(Profile("test"), {}, self.paths, cwd or self.cwd)
        return CliRunner().invoke(app, words, obj=context, standalone_mode=False)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "work" / "a").write_text("old\n")
    return Home(tmp_path)


async def changed(home: Home, path: str) -> str:
    result = await call(WRITE, tool_env(home.cwd), path=path, content="new\n")
    kept: str = details(result)["checkpoint_id"]
    return kept


async def both(home: Home) -> tuple[str, str]:
    return await changed(home, "a"), await changed(home, "sub/b")


def test_the_command_is_declared() -> None:
    (spec,) = COMMANDS
    assert (spec.name, load_target(spec.target)) == ("checkpoint", app)


@pytest.fixture
def kept(home: Home) -> tuple[str, str]:
    """The commands run a loop of their own, so these tests have none."""
    return anyio.run(both, home)


@pytest.mark.behaviour("coding_agent.108")
def test_files_are_listed_compared_and_put_back(home: Home, kept: tuple[str, str]) -> None:
    first, second = kept
    listed = home.lemon("list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [second, first]
    document = json.loads(home.lemon("list", "--json", "--limit", "1").stdout)
    assert (document["count"], len(document["checkpoints"])) == (2, 1)
    assert document["checkpoints"][0]["paths"] == ["sub/b"]
    assert "a (modified)" in home.lemon("diff", first).stdout
    assert "-old\n+new" in home.lemon("diff", first, "a").stdout
    assert json.loads(home.lemon("diff", second, "--json").stdout)["changes"][0]["change"] == (
        "created"
    )
    refused = home.lemon("restore", first)
    assert (refused.return_value, (home.cwd / "a").read_text()) == (1, "new\n")
    done = home.lemon("restore", first, "--yes")
    assert (done.return_value, done.stdout) == (0, "restored a\n")
    assert (home.cwd / "a").read_text() == "old\n"
    # A path as it is seen from where the user is.
    done = home.lemon("restore", second, "b", "--yes", "--json", cwd=home.cwd / "sub")
    assert json.loads(done.stdout)["deleted"] == ["sub/b"]
    assert not (home.cwd / "sub" / "b").exists()
    assert home.lemon("diff", first).stdout == "Nothing changed since.\n"


def test_lists_can_be_narrowed(home: Home, kept: tuple[str, str], tmp_path: Path) -> None:
    assert home.lemon("list", "--session", "other").stdout == "There are no checkpoints.\n"
    assert len(home.lemon("list", "--session", "sess_1").stdout.splitlines()) == 2
    assert home.lemon("list", "--here", cwd=tmp_path / "work" / "sub").stdout.startswith("There")
    assert len(home.lemon("list", "--here", cwd=tmp_path).stdout.splitlines()) == 2
    assert "newest 1 of 2" in home.lemon("list", "--limit", "1").stderr


def test_what_is_wrong_is_told(home: Home, kept: tuple[str, str]) -> None:
    for words, problem in [
        (("diff", "chk_0000000000000000"), "there is no checkpoint"),
        (("restore", "x", "--yes"), "is no checkpoint id"),
        (("restore", kept[0], "other", "--yes"), "is not in"),
    ]:
        result = home.lemon(*words)
        assert problem in str(result.exception)


@pytest.mark.behaviour("coding_agent.108")
def test_leftovers_of_a_crash_and_the_oldest_beyond_the_cap_go(
    home: Home, kept: tuple[str, str]
) -> None:
    """What was left by a process that died is removed at the next start."""
    folder = home.paths.checkpoint_dir
    (folder / ".chk_0123456789abcdef.tmp").write_text("half")
    size = CheckpointFolder(folder).usage().used_bytes
    CheckpointFolder(folder, max_bytes=size // 2).tidy()
    assert [line.split()[0] for line in home.lemon("list").stdout.splitlines()] == [kept[1]]
    assert not list(folder.glob(".*.tmp"))
