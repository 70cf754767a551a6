"""`find` on ripgrep and on what stands in for it (specification coding_agent 7, 11.14)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from coding_agent.tests.harness import Call, call, details, lives, pids_in, tool_env
from coding_agent.tools import find as find_module
from coding_agent.tools.find import FIND, name_pattern
from coding_agent.tools.ripgrep import Ripgrep, stand_in
from coding_agent.tools.toolset import ToolEnv
from lemon_agent import ToolError

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["rg", "stand_in"])
def env(tmp_path: Path, request: pytest.FixtureRequest) -> ToolEnv:
    folder = tmp_path / "work"
    for name in ("a.py", "src/b.py", "src/deep/c.PY", "src/deep/notes.md", "build/d.py", ".e.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / ".git").mkdir()
    (folder / ".git" / "f.py").touch()
    (folder / ".gitignore").write_text("build/\n")
    (folder / "link").symlink_to(tmp_path)
    env = tool_env(folder)
    return env if request.param == "rg" else replace(env, ripgrep=Ripgrep({}, stand_in()))


async def found(env: ToolEnv, pattern: str, **params: object) -> list[str]:
    lines = (await call(FIND, env, pattern=pattern, **params)).text.splitlines()
    assert lines[0].startswith(f"Found {len(lines) - 1} match")
    return lines[1:]


async def test_names_are_found_and_ignored_ones_are_not(env: ToolEnv) -> None:
    assert await found(env, "*.py") == ["a.py", "src/b.py"]
    assert await found(env, "*.py", hidden=True) == [".e.py", "a.py", "src/b.py"]
    assert await found(env, "src/**/*") == [
        "src/b.py",
        "src/deep/",
        "src/deep/c.PY",
        "src/deep/notes.md",
    ]
    assert await found(env, "src/*") == ["src/b.py", "src/deep/"]
    assert await found(env, "NOTE") == ["src/deep/notes.md"]
    assert await found(env, "deep/c.PY") == ["src/deep/c.PY"]
    assert await found(env, "*.{md,PY}") == ["src/deep/c.PY", "src/deep/notes.md"]
    assert await found(env, "nothing") == []


async def test_the_search_can_be_narrowed(env: ToolEnv) -> None:
    assert await found(env, "*", type="directory") == ["src/", "src/deep/"]
    assert await found(env, "*", type="directory", max_depth=1) == ["src/"]
    assert await found(env, "*", type="file", max_depth=2) == ["a.py", "src/b.py"]
    assert await found(env, "*", path="src", max_depth=1) == ["src/b.py", "src/deep/"]


async def test_what_is_not_shown_is_in_a_file(env: ToolEnv) -> None:
    result = await call(FIND, env, pattern="*", max_results=2)
    saved = Path(details(result)["full_output_path"])
    assert result.text == (
        "Found 6 matches.\na.py\nsrc/\n"
        f"[Showing the first 2. Use max_results for more. All of them: {saved}]"
    )
    assert len(saved.read_text().splitlines()) == 6


async def test_the_first_ones_are_kept_of_too_many(
    env: ToolEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_module, "MAX_KEPT", 3)
    for folder in ("a-b", "a", "b"):
        for number in range(20):
            path = env.guard.cwd / folder / f"{number:02}.txt"
            path.parent.mkdir(exist_ok=True)
            path.touch()
    lines = (await call(FIND, env, pattern="*.txt")).text.splitlines()
    assert lines[0].startswith("Found 60 matches")
    assert lines[1:4] == ["a/00.txt", "a/01.txt", "a/02.txt"]


async def test_find_names_what_is_wrong(env: ToolEnv) -> None:
    for params, problem in [
        ({"pattern": " "}, "pattern needs 1 to 1000"),
        ({"pattern": "[z-a]"}, "cannot be read"),
        ({"pattern": "x", "path": "none"}, "none: No such file"),
        ({"pattern": "x", "path": "a.py"}, "a.py is a file"),
        ({"pattern": "x", "path": "link"}, "outside the workspace"),
    ]:
        with pytest.raises(ToolError, match=problem):
            await call(FIND, env, **params)


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("*.py", ["a.py", "x/y/a.py"], ["a.pyc", "a.py/x"]),
        ("a?", ["ab", "x/ab"], ["a", "a/b"]),
        ("src/*.ts", ["src/a.ts"], ["src/x/a.ts", "y/src/a.ts"]),
        ("src/**/*.ts", ["src/a.ts", "src/x/y/a.ts"], ["a.ts"]),
        ("**/x", ["x", "a/b/x"], ["xx"]),
        ("[!a]b", ["cb"], ["ab"]),
        ("a.b*", ["a.b", "a.bc"], ["axb"]),
        ("a,b*", ["a,b"], ["a"]),
    ],
)
def test_patterns_mean_what_people_expect(pattern: str, fits: list[str], fails: list[str]) -> None:
    regex = name_pattern(pattern)
    assert [bool(regex.fullmatch(name)) for name in fits] == [True] * len(fits)
    assert [bool(regex.fullmatch(name)) for name in fails] == [False] * len(fails)


@pytest.mark.behaviour("coding_agent.14")
async def test_a_find_ends_at_its_time_limit_and_with_its_run(
    env: ToolEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "ready")
    slow = tmp_path / "bin" / "rg"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\ncd {tmp_path}\necho $$ > pid; exec sleep 300\n")
    slow.chmod(0o755)
    slowed = replace(env, ripgrep=Ripgrep({"PATH": str(slow.parent)}))
    monkeypatch.setattr(find_module, "TIMEOUT_MS", 300)
    result = await call(FIND, slowed, pattern="x")
    assert result.text == "Found 0 or more matches.\n[Stopped after 300 ms. Narrow the search.]"
    assert not any(map(lives, pids_in(tmp_path / "pid")))
    monkeypatch.setattr(find_module, "TIMEOUT_MS", 60_000)
    slow.write_text(f"#!/bin/sh\ncd {tmp_path}\necho $$ > pid; echo > ready; exec sleep 300\n")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Call({"pattern": "x"}).run, FIND, slowed)
        with anyio.fail_after(5):
            await anyio.to_thread.run_sync((tmp_path / "ready").read_text)
        tasks.cancel_scope.cancel()
    assert not any(map(lives, pids_in(tmp_path / "pid")))
