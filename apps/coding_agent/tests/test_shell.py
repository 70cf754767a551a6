"""`bash` with real processes (specification coding_agent 7 and 11.15)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from coding_agent.tests.harness import Call, call, details, lives, pids_in, tool_env
from coding_agent.tools import output as output_module
from coding_agent.tools import shell
from coding_agent.tools.shell import bash_tool, clean
from coding_agent.tools.toolset import ShellSettings
from lemon_agent import ToolError
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

BASH = bash_tool(60_000)


async def test_a_command_runs_in_the_working_directory(tmp_path: Path) -> None:
    result = await call(BASH, tool_env(tmp_path), command="pwd; echo oops >&2; cat")
    assert result.text == f"{tmp_path.resolve()}\noops"
    assert details(result) == {"exit_code": 0, "truncated": False, "full_output_path": None}
    assert not result.is_error
    assert (await call(BASH, tool_env(tmp_path), command="true")).text == "(no output)"


@pytest.mark.behaviour("coding_agent.15")
async def test_an_exit_code_is_a_result_and_no_error(tmp_path: Path) -> None:
    result = await call(BASH, tool_env(tmp_path), command="echo no; exit 3")
    assert result.text == "no\nCommand exited with code 3"
    assert details(result)["exit_code"] == 3
    assert not result.is_error
    result = await call(BASH, tool_env(tmp_path), command="false")
    assert result.text == "Command exited with code 1"


@pytest.mark.behaviour("coding_agent.15")
async def test_only_the_end_of_much_output_is_shown(tmp_path: Path) -> None:
    """What is shown is bounded, the file has everything and is private."""
    env = tool_env(tmp_path)
    result = await call(BASH, env, command="seq 1 100000; echo END")
    path = Path(details(result)["full_output_path"])
    shown = result.text.splitlines()
    size = path.stat().st_size
    assert shown[-1] == f"[The output has {size} bytes. Full output saved to: {path}]"
    assert shown[-3:-1] == ["100000", "END"]
    assert len(shown) == 2_001
    assert len(result.text) < 51_000
    assert details(result)["truncated"] is True
    assert path.read_text() == "".join(f"{n}\n" for n in range(1, 100_001)) + "END\n"
    assert path.is_relative_to(env.spill_dir)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_one_line_without_an_end_is_bounded_too(tmp_path: Path) -> None:
    command = "head -c 3000000 /dev/zero | tr '\\0' x"
    result = await call(BASH, tool_env(tmp_path), command=command)
    assert len(result.text) < 50_300
    assert Path(details(result)["full_output_path"]).stat().st_size == 3_000_000


async def test_many_short_lines_are_cut_and_saved(tmp_path: Path) -> None:
    result = await call(BASH, tool_env(tmp_path), command="seq 1 2500")
    assert result.text.startswith("501\n")
    assert Path(details(result)["full_output_path"]).read_text().startswith("1\n2\n")
    whole = await call(BASH, tool_env(tmp_path), command="seq 1 2000")
    assert details(whole)["truncated"] is False
    assert whole.text.startswith("1\n")


async def test_output_that_cannot_be_saved_is_still_shown(tmp_path: Path) -> None:
    (tmp_path / "spill").touch()
    result = await call(BASH, tool_env(tmp_path), command="seq 1 3000")
    assert result.text.endswith("\n3000")
    assert details(result) == {"exit_code": 0, "truncated": True, "full_output_path": None}


async def test_endless_output_ends_at_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "MAX_SPILL_BYTES", 100_000)
    result = await call(BASH, tool_env(tmp_path), command="yes", timeout_ms=1_000)
    assert result.text.startswith("Command timed out after 1000 ms.\ny\n")
    assert Path(details(result)["full_output_path"]).stat().st_size == 100_000
    assert len(result.text) < 50_300


@pytest.mark.behaviour("coding_agent.15")
async def test_at_the_time_limit_grandchildren_die_and_output_is_kept(tmp_path: Path) -> None:
    command = "echo before; (sleep 300 & echo $$ $! > pid; wait) & sleep 300"
    result = await call(BASH, tool_env(tmp_path), command=command, timeout_ms=1_000)
    assert result.is_error
    assert result.text == "Command timed out after 1000 ms.\nbefore"
    assert details(result) == {
        "exit_code": None,
        "truncated": False,
        "full_output_path": None,
        "error_type": "timeout",
        "timeout_ms": 1_000,
    }
    assert not any(map(lives, pids_in(tmp_path / "pid")))


@pytest.mark.behaviour("coding_agent.15")
async def test_an_abort_kills_grandchildren_and_keeps_the_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    command = "echo before; (sleep 300 & echo $! > pid; echo > ready; wait) & wait"
    running = Call({"command": command})
    results = []
    async with anyio.create_task_group() as tasks:

        async def play() -> None:
            # The loop's own way: the call has a scope, and the signal cancels it.
            with anyio.CancelScope() as scope, running.signal.watching(scope.cancel):
                results.append(await running.run(BASH, tool_env(tmp_path)))

        tasks.start_soon(play)
        with anyio.fail_after(5):
            await anyio.to_thread.run_sync((tmp_path / "ready").read_text)
            await running.updated.wait()
        running.signal.abort()
    assert not any(map(lives, pids_in(tmp_path / "pid")))
    (result,) = results
    assert (result.text, result.is_error) == ("interrupted, outcome unknown", True)
    assert details(result) == {"error_type": "aborted", "output": "before"}


async def test_a_cancelled_task_stays_cancelled(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    running = Call({"command": "echo $$ > pid; echo > ready; exec sleep 300"})
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running.run, BASH, tool_env(tmp_path))
            with anyio.fail_after(5):
                await anyio.to_thread.run_sync((tmp_path / "ready").read_text)
            scope.cancel()
    assert scope.cancelled_caught
    assert not any(map(lives, pids_in(tmp_path / "pid")))


async def test_output_is_shown_while_the_command_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    running = Call({"command": "echo first; read x < go; echo second"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run, BASH, tool_env(tmp_path))
        with anyio.fail_after(5):
            await running.updated.wait()
            assert running.updates[0].text == "first"
            assert details(running.updates[0]) == {"output": "first"}
            await anyio.to_thread.run_sync((tmp_path / "go").write_text, "\n")


async def test_progress_does_not_grow_with_the_output(tmp_path: Path) -> None:
    running = Call({"command": "seq 1 500000"})
    await running.run(BASH, tool_env(tmp_path))
    assert sum(len(update.text) for update in running.updates) < 500_000
    assert all(len(update.text) <= shell.UPDATE_BYTES for update in running.updates)


def test_control_sequences_are_stripped() -> None:
    raw = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07a\r\nb\x08\x1b(B\x1b]8;;http://x\x1b\\link\tend\x00\xff"
    assert clean(raw) == "red a\nblink\tend\ufffd"


async def test_the_configured_shell_and_prefix_are_used(tmp_path: Path) -> None:
    own = tmp_path / "own-shell"
    own.write_text('#!/bin/sh\necho "own $2"\n')
    own.chmod(0o755)
    env = tool_env(tmp_path, shell=ShellSettings(path=str(own), command_prefix="set -e"))
    assert (await call(BASH, env, command="x")).text == "own set -e\nx"
    env = tool_env(tmp_path, shell=ShellSettings(path="/nonexistent"))
    with pytest.raises(ToolError, match=r"the shell cannot be started: .*/nonexistent"):
        await call(BASH, env, command="x")
    assert shell.default_shell() in ("/bin/bash", "/bin/sh")


@pytest.mark.behaviour("coding_agent.15")
async def test_the_policy_decides_what_runs(tmp_path: Path) -> None:
    sandboxed = ToolPolicy.parse({"sandbox": True})
    listed = ToolPolicy.parse({"allowed_commands": ["ls"]})
    for env, command, problem in [
        (tool_env(tmp_path, policy=sandboxed), "touch ran", "asks for a sandbox"),
        (tool_env(tmp_path, policy=listed), "ls && touch ran", "does not allow this command"),
        (tool_env(tmp_path, read_only=True), "touch ran", "read-only"),
        (tool_env(tmp_path), "touch ran\0", "null character"),
    ]:
        with pytest.raises(ToolError, match=problem):
            await call(BASH, env, command=command)
    assert not (tmp_path / "ran").exists()
    assert (await call(BASH, tool_env(tmp_path, policy=listed), command="ls")).text != ""


@pytest.mark.parametrize(
    "variable",
    [("LEMON_TERMINAL_BACKENDS_DENY", "local"), ("LEMON_TERMINAL_BACKENDS_ALLOW", "ssh")],
)
async def test_a_machine_may_let_no_command_run(tmp_path: Path, variable: tuple[str, str]) -> None:
    """Specification lemon_core 15."""
    env = tool_env(tmp_path)
    forbidden = replace(env, environ={**env.environ, **dict([variable])})
    with pytest.raises(ToolError, match="this machine lets no command run"):
        await call(BASH, forbidden, command="touch ran")
    assert not (tmp_path / "ran").exists()


async def test_the_model_is_told_the_configured_time_limit() -> None:
    assert (
        "5000 when left out"
        in bash_tool(5_000).parameters["properties"]["timeout_ms"]["description"]
    )
