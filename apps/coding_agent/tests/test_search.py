"""`grep` on the real ripgrep (specification coding_agent 7)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from coding_agent.tests.harness import Call, call, details, lives, pids_in, tool_env
from coding_agent.tools import search
from coding_agent.tools.files import READ
from coding_agent.tools.ripgrep import Ripgrep, stand_in
from coding_agent.tools.search import GREP, MAX_RAW_BYTES, parse_matches
from coding_agent.tools.search_place import search_place
from coding_agent.tools.toolset import ToolEnv
from lemon_agent import ToolError

pytestmark = pytest.mark.anyio


@pytest.fixture
def env(tmp_path: Path) -> ToolEnv:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("ignored.txt\n")
    (tmp_path / "ignored.txt").write_text("needle\n")
    (tmp_path / ".hidden.txt").write_text("needle\n")
    (tmp_path / "blob.bin").write_bytes(b"\0needle\n")
    (tmp_path / "a.py").write_text("one\nNeedle = 1\ntwo\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "b.txt").write_text("a needle\nneedle.x\n")
    return tool_env(tmp_path)


async def test_matches_come_with_place_and_line(env: ToolEnv) -> None:
    """Ignored, hidden and binary files are skipped."""
    result = await call(GREP, env, pattern="needle")
    assert result.text == "Found 2 matches.\nsrc/b.txt:1: a needle\nsrc/b.txt:2: needle.x"
    assert details(result) == {"matches": 2, "timed_out": False, "full_output_path": None}
    assert (await call(GREP, env, pattern="nothing")).text == "Found 0 matches."
    assert (await call(GREP, env, pattern="a needle", path="src/b.txt")).text == (
        "Found 1 match.\nsrc/b.txt:1: a needle"
    )


async def test_what_was_kept_of_a_long_result_is_foreign_when_it_is_searched(env: ToolEnv) -> None:
    env.spill_dir.mkdir(parents=True)
    (env.spill_dir / "abc.txt").write_text("a needle from outside\n")
    assert (await call(GREP, env, pattern="needle")).trust == "trusted"
    for place in (env.spill_dir, env.spill_dir / "abc.txt"):
        assert (await call(GREP, env, pattern="needle", path=str(place))).trust == "untrusted"


def many_files(folder: Path) -> list[str]:
    names = [f"{name}/{number:02}.txt" for name in ("a-b", "a", "b") for number in range(20)]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("one needle\ntwo needles\n")
    return sorted(names, key=lambda name: name.split("/"))


@pytest.mark.parametrize("raw_bytes", [MAX_RAW_BYTES, 3_000])
async def test_matches_come_in_the_order_of_paths_also_when_not_all_fit(
    raw_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_RAW_BYTES", raw_bytes)
    names = many_files(tmp_path)
    text = (await call(GREP, tool_env(tmp_path), pattern="needle")).text
    lines = [line for name in names for line in (f"{name}:1: one needle", f"{name}:2: two needles")]
    shown = text.splitlines()[1:6]
    assert shown == lines[:5]


async def test_options_narrow_and_widen_the_search(env: ToolEnv) -> None:
    text = (await call(GREP, env, pattern="needle", case_sensitive=False, glob="*.py")).text
    assert text == "Found 1 match.\na.py:2: Needle = 1"
    text = (await call(GREP, env, pattern="needle.x", literal=True)).text
    assert text == "Found 1 match.\nsrc/b.txt:2: needle.x"
    text = (await call(GREP, env, pattern="Needle", context_lines=1)).text
    assert text == "Found 1 match.\na.py-1- one\na.py:2: Needle = 1\na.py-3- two"
    # A pattern that looks like an option is still a pattern.
    assert (await call(GREP, env, pattern="--files")).text == "Found 0 matches."


async def test_every_limit_is_told(env: ToolEnv) -> None:
    (env.guard.cwd / "long.txt").write_text("long " + "x" * 600 + "\n")
    (env.guard.cwd / "many.txt").write_text("many " + "y" * 480 + "\n")
    result = await call(GREP, env, pattern="needle", max_results=1)
    saved = Path(details(result)["full_output_path"])
    assert result.text == (
        "Found 2 matches.\nsrc/b.txt:1: a needle\n"
        f"[Showing the first 1. Use max_results for more. All of them: {saved}]"
    )
    assert saved.read_text() == "src/b.txt:1: a needle\nsrc/b.txt:2: needle.x\n"
    assert (await call(READ, env, path=str(saved))).text.endswith("2: src/b.txt:2: needle.x")
    text = (await call(GREP, env, pattern="long")).text
    assert f"long.txt:1: long {'x' * 495}…\n[Long lines cut at 500 characters.]" in text
    (env.guard.cwd / "many.txt").write_text(("many " + "y" * 480 + "\n") * 200)
    result = await call(GREP, env, pattern="many", max_results=200)
    saved = details(result)["full_output_path"]
    end = f"[Output cut at 51200 bytes. Narrow the search. All of them: {saved}]"
    assert result.text.endswith(end)
    assert Path(saved).read_text().count("\n") == 200
    assert len(result.text) < 52_000


def test_output_that_was_cut_off_is_read_as_far_as_it_goes() -> None:
    line = (
        b'{"type":"match","data":'
        b'{"path":{"text":"/w/a"},"lines":{"text":"x\\n"},"line_number":7}}\n'
    )
    bytes_line = line.replace(b'{"text":"x\\n"}', b'{"bytes":"Y2Fm6Q=="}')
    matches = parse_matches(line + bytes_line + line[:40], str, 10)
    assert matches.lines == ["/w/a:7: x", "/w/a:7: caf\ufffd"]
    assert (matches.found, matches.count_cut) == (2, False)
    assert parse_matches(bytearray(MAX_RAW_BYTES), str, 1).count_cut


async def test_grep_names_what_is_wrong(env: ToolEnv) -> None:
    for params, problem in [
        ({"pattern": "("}, r"regex parse error(?s:.)*\^(?s:.)*Use literal=true"),
        ({"pattern": ""}, "pattern needs 1 to 10000 bytes"),
        ({"pattern": "x" * 10_001}, "pattern needs 1 to 10000 bytes"),
        ({"pattern": "a\0b"}, "without null characters"),
        ({"pattern": "x", "path": "none"}, "No such file"),
        ({"pattern": "x", "path": "/etc"}, "outside the workspace"),
    ]:
        with pytest.raises(ToolError, match=problem):
            await call(GREP, env, **params)


@pytest.mark.behaviour("coding_agent.14")
async def test_a_search_ends_at_its_time_limit(
    env: ToolEnv, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = fake_rg(tmp_path, "echo $$ > pid; exec sleep 300")
    monkeypatch.setattr(search, "TIMEOUT_MS", 300)
    result = await call(GREP, with_rg(env, slow), pattern="x")
    assert result.text == "Found 0 or more matches.\n[Stopped after 300 ms. Narrow the search.]"
    assert details(result)["timed_out"] is True
    assert not any(map(lives, pids_in(tmp_path / "pid")))


@pytest.mark.behaviour("coding_agent.14")
async def test_a_search_ends_with_its_run(env: ToolEnv, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    slow = fake_rg(tmp_path, "echo $$ > pid; echo > ready; exec sleep 300")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Call({"pattern": "x"}).run, GREP, with_rg(env, slow))
        with anyio.fail_after(5):
            await anyio.to_thread.run_sync((tmp_path / "ready").read_text)
        tasks.cancel_scope.cancel()
    assert not any(map(lives, pids_in(tmp_path / "pid")))


def test_the_package_brings_its_own_program() -> None:
    (program,) = Ripgrep({"PATH": "/nonexistent"}).command()
    assert Path(program).name == "rg"


def test_the_users_own_program_comes_first(tmp_path: Path) -> None:
    own = fake_rg(tmp_path, "true")
    assert Ripgrep({"PATH": str(own.parent)}).command() == (str(own),)


def test_without_any_program_another_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", "/nonexistent")
    monkeypatch.setattr("sys.path", ["/nonexistent"])
    assert Ripgrep({}).command() == stand_in()


def fake_rg(folder: Path, script: str) -> Path:
    (folder / "bin").mkdir()
    program = folder / "bin" / "rg"
    program.write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
    program.chmod(0o755)
    return program


def with_rg(env: ToolEnv, program: Path) -> ToolEnv:
    return replace(env, ripgrep=Ripgrep({"PATH": str(program.parent)}))


@pytest.mark.behaviour("coding_agent.26")
def test_a_link_put_in_the_way_of_a_search_is_refused(tmp_path: Path) -> None:
    """Between check and use the folder, or the file, becomes a link that leads outside."""
    folder = tmp_path / "work" / "sub"
    folder.mkdir(parents=True)
    (folder / "file").touch()
    (tmp_path / "file").write_text("secret")
    paths = [folder.resolve(), folder.resolve() / "file"]
    (folder / "file").unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    for path in paths:
        with pytest.raises((ToolError, OSError)), search_place(path, "sub"):
            pytest.fail("the search began")
