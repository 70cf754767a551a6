"""What stands in for ripgrep finds what ripgrep finds (specification coding_agent 11.14)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
import pytest

from coding_agent.tests.harness import Call, call, details, lives, tool_env
from coding_agent.tools import search
from coding_agent.tools.find import FIND
from coding_agent.tools.ripgrep import Ripgrep, stand_in
from coding_agent.tools.search import GREP
from coding_agent.tools.toolset import ToolEnv
from lemon_agent import ToolError

pytestmark = pytest.mark.anyio

FILES: Mapping[str, bytes] = {
    "a.py": b"import os\n\ndef needle():\n    return 'Needle'\n# end without a line feed",
    "crlf.txt": b"one\r\nneedle\r\nthree\r\n",
    "bom.txt": b"\xef\xbb\xbfneedle\n",
    "utf16.txt": b"\xff\xfe" + "needle ä\n".encode("utf-16-le"),
    "latin.txt": b"needle \xe4\xff\n",
    "binary": b"needle\n\0needle\n",
    "long.txt": b"x" * 2_000 + b" needle\n" + b"needle\n" * 3,
    "umlaut ä.txt": "Süße needle\n".encode(),
    "new\nline.txt": b"needle\n",
    ".hidden/needle.txt": b"needle\n",
    ".env": b"needle\n",
    "kept.log": b"needle\n",
    "dropped.log": b"needle\n",
    "build/out.py": b"needle\n",
    "src/build/out.py": b"needle\n",
    "src/a.md": b"needle\n",
    "src/deep/a.md": b"needle\n",
    "src/deep/er/b.md": b"needle\n",
    "src/rooted": b"needle\n",
    "rooted": b"needle\n",
    "docs/mid/leaf": b"needle\n",
    "docs/keep/x": b"needle\n",
    "docs/drop/x": b"needle\n",
    "docs/a b ": b"needle\n",
    "docs/#hash": b"needle\n",
    "docs/!bang": b"needle\n",
    "kz": b"needle\n",
    "az": b"needle\n",
    "one.tmp": b"needle\n",
    "two.tmp": b"needle\n",
    "excluded": b"needle\n",
    "src/.wanted": b"needle\n",
    "many": b"a\nneedle\nb\nc\nneedle\nneedle\nd\ne\nf\nneedle\n",
}
IGNORES: Mapping[str, str] = {
    ".gitignore": (
        "# a comment\n*.log\n!kept.log\nbuild/\n/rooted\n**/mid/leaf\ndocs/**/x\n!docs/keep/x\n"
        "docs/a\\ b\\ \n\\#hash\n\\!bang\n[!k]z\n{one,two}.tmp  \n[broken\n"
    ),
    "src/.gitignore": "*.md\n!/a.md\n!.wanted\n",
    "src/deep/.ignore": "!er/*.md\n",
    ".ignore": "kept.log\n",
    ".rgignore": "!kept.log\nlong.txt\n",
    ".git/info/exclude": "excluded\n",
    ".git/config": "needle\n",
}


@pytest.fixture
def env(tmp_path: Path) -> ToolEnv:
    return tree(tmp_path / "work", "repository")


def tree(folder: Path, kind: str) -> ToolEnv:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for name, text in IGNORES.items():
        if name.startswith(".git/") and kind == "plain folder":
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link").symlink_to("src")
    (folder / "link.txt").symlink_to("a.py")
    return tool_env(folder / "src" if kind == "inside of one" else folder)


def without(env: ToolEnv) -> ToolEnv:
    return replace(env, ripgrep=Ripgrep({}, stand_in()))


@pytest.mark.behaviour("coding_agent.14")
@pytest.mark.parametrize(
    "params",
    [
        {"pattern": "needle"},
        {"pattern": "needle", "case_sensitive": False},
        {"pattern": "^needle$"},
        {"pattern": r"^\s*return|\bend\b"},
        {"pattern": "needle()", "literal": True},
        {"pattern": "needle", "context_lines": 1, "glob": "many"},
        {"pattern": "needle", "context_lines": 2},
        {"pattern": "needle", "glob": "*.md"},
        {"pattern": "needle", "glob": "!*.py"},
        {"pattern": "needle", "glob": "src/**"},
        {"pattern": "needle", "glob": "*.{py,log}"},
        {"pattern": "needle", "glob": "build"},
        {"pattern": "needle", "path": "many"},
        {"pattern": "needle", "path": "binary"},
        {"pattern": "needle", "path": "src/build"},
        {"pattern": "needle", "max_results": 3},
        {"pattern": "[[:upper:]][ü-ÿ]"},
        {"pattern": "(?i)NEEDLE|x{1999} "},
        {"pattern": r"(?<name>n)eedle ä"},
        {"pattern": "nothing of this"},
        {"pattern": ""},
        {"pattern": "-needle"},
    ],
)
async def test_a_search_gives_the_same(env: ToolEnv, params: dict[str, Any]) -> None:
    assert await outcome(GREP, without(env), params) == await outcome(GREP, env, params)


@pytest.mark.behaviour("coding_agent.14")
@pytest.mark.parametrize(
    "params",
    [
        {"pattern": "*"},
        {"pattern": "*", "hidden": True},
        {"pattern": "*", "type": "file"},
        {"pattern": "*", "type": "directory"},
        {"pattern": "*", "type": "file", "max_depth": 1},
        {"pattern": "*", "type": "file", "max_depth": 2},
        {"pattern": "*", "max_depth": 2},
        {"pattern": "*.md", "path": "src"},
        {"pattern": "a", "path": "src/build"},
    ],
)
async def test_a_find_gives_the_same(env: ToolEnv, params: dict[str, Any]) -> None:
    assert await outcome(FIND, without(env), params) == await outcome(FIND, env, params)


@pytest.mark.behaviour("coding_agent.14")
@pytest.mark.parametrize("kind", ["plain folder", "inside of one"])
async def test_it_does_so_outside_and_inside_of_a_repository(tmp_path: Path, kind: str) -> None:
    env = tree(tmp_path / "work", kind)
    for params in ({"pattern": "needle"}, {"pattern": "needle", "glob": "*.md"}):
        assert await outcome(GREP, without(env), params) == await outcome(GREP, env, params)
    for hidden in (False, True):
        asked = {"pattern": "*", "hidden": hidden}
        assert await outcome(FIND, without(env), asked) == await outcome(FIND, env, asked)


async def outcome(tool: Any, env: ToolEnv, params: dict[str, Any]) -> object:
    try:
        result = await call(tool, env, **params)
    except ToolError as exc:
        return str(exc).splitlines()[0]
    about = {**details(result), "full_output_path": None}
    return result.text.split(" All of them:")[0], about


async def test_a_pattern_that_cannot_be_read_is_told(env: ToolEnv) -> None:
    with pytest.raises(ToolError, match=r"regex parse error: .*position 1\nUse literal=true"):
        await call(GREP, without(env), pattern="a(")


async def test_the_users_own_rules_for_all_repositories_count(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / ".git").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (folder / name).write_text("needle\n")
    env = tool_env(folder)
    config = tmp_path / "config"
    (config / "git").mkdir(parents=True)
    (config / "git/ignore").write_text("one\n")
    env = replace(env, environ={**env.environ, "XDG_CONFIG_HOME": str(config)})
    assert (await call(FIND, without(env), pattern="*")).text == (
        await call(FIND, env, pattern="*")
    ).text
    (config / "git/config").write_text(f'[core]\n\texcludesFile = "{config}/mine"\n')
    (config / "mine").write_text("two\n")
    assert (await call(FIND, without(env), pattern="*")).text == "Found 2 matches.\none\nthree"


@pytest.mark.parametrize("kind", ["pipe", "device", "too large", "nested", "large"])
async def test_nothing_that_lies_in_a_folder_can_keep_it_from_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """An exception of it would look like a search without matches."""
    monkeypatch.setattr(search, "TIMEOUT_MS", 3_000)
    folder = tmp_path / "work"
    (folder / "z").mkdir(parents=True)
    (folder / "z" / "a.txt").write_text("needle\n")
    match kind:
        case "pipe":
            os.mkfifo(folder / ".gitignore")
        case "device":
            (folder / ".ignore").symlink_to("/dev/zero")
        case "too large":
            (folder / ".ignore").touch()
            os.truncate(folder / ".ignore", 1 << 40)
        case "nested":
            (folder / ".ignore").write_text("{" * 5_000 + "}" * 5_000 + "\n")
        case "large":
            (folder / "a.bin").touch()
            os.truncate(folder / "a.bin", 1 << 40)
    found = await call(GREP, without(tool_env(folder)), pattern="needle")
    assert found.text.splitlines()[:2] == ["Found 1 match.", "z/a.txt:1: needle"]


async def test_folders_may_lie_as_deep_as_they_like(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    deep = [folder / "/".join("d" * depth) for depth in range(1_100)]
    (folder / "z").mkdir(parents=True)
    (folder / "z" / "a.txt").write_text("needle\n")
    for inner in deep[1:]:
        inner.mkdir()
    try:
        found = await call(GREP, without(tool_env(folder)), pattern="needle")
    finally:
        for inner in reversed(deep[1:]):  # nobody else removes what is as deep
            inner.rmdir()
    assert found.text.splitlines() == ["Found 1 match.", "z/a.txt:1: needle"]


async def test_a_pattern_that_is_nested_too_deeply_is_told(env: ToolEnv) -> None:
    with pytest.raises(ToolError, match="regex parse error"):
        await call(GREP, without(env), pattern="(" * 4_000 + ")" * 4_000)


@pytest.mark.behaviour("coding_agent.14")
async def test_it_ends_at_its_time_limit_and_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern that runs away is the slow search of Python."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "slow.txt").write_text("a" * 60 + "!\n")
    # A pattern of its own, because it is looked for among all processes of the machine.
    env, pattern = without(tool_env(folder)), f"(a+)+$|{uuid4().hex}"
    monkeypatch.setattr(search, "TIMEOUT_MS", 500)
    result = await call(GREP, env, pattern=pattern)
    assert details(result)["timed_out"] is True
    monkeypatch.setattr(search, "TIMEOUT_MS", 60_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Call({"pattern": pattern}).run, GREP, env)
        with anyio.fail_after(5):
            while not (pids := await anyio.to_thread.run_sync(searching, pattern)):
                pass
        tasks.cancel_scope.cancel()
    assert not any(map(lives, pids))


def searching(pattern: str) -> list[int]:
    """The processes that search for this."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"={pattern}\0" in (entry / "cmdline").read_text():
                found.append(int(entry.name))
    return found
