"""`bash` with real processes (specification coding_agent 7 and 11.15)."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from coding_agent.settings import without_secrets
from coding_agent.tests.harness import Call, call, details, lives, pids_in, tool_env
from coding_agent.tools import output as output_module
from coding_agent.tools import shell
from coding_agent.tools.live_output import UPDATE_BYTES, clean
from coding_agent.tools.shell import bash_tool
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
async def test_head_and_tail_of_much_output_are_shown(tmp_path: Path) -> None:
    """What is shown is bounded, the file has everything and is private."""
    env = tool_env(tmp_path)
    result = await call(BASH, env, command="seq 1 100000; echo END")
    path = Path(details(result)["full_output_path"])
    shown = result.text.splitlines()
    size = path.stat().st_size
    assert shown[:2] == ["1", "2"]
    assert shown[200] == f"[… cut: {size} bytes in all. Full output saved to: {path}]"
    assert shown[-2:] == ["100000", "END"]
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
    assert result.text.startswith("1\n2\n")
    assert "\n200\n[… cut: 11393 bytes in all. Full output saved to: " in result.text
    assert "]\n701\n702\n" in result.text
    assert Path(details(result)["full_output_path"]).read_text().startswith("1\n2\n")
    whole = await call(BASH, tool_env(tmp_path), command="seq 1 2000")
    assert details(whole)["truncated"] is False
    assert whole.text.startswith("1\n")


async def test_output_that_cannot_be_saved_is_still_shown(tmp_path: Path) -> None:
    env = tool_env(tmp_path)
    env.spill_dir.parent.mkdir()
    env.spill_dir.touch()
    result = await call(BASH, env, command="seq 1 3000")
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
    assert all(len(update.text) <= UPDATE_BYTES for update in running.updates)


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
    listed = ToolPolicy.parse({"allowed_commands": ["ls"]})
    for env, command, problem in [
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


@pytest.mark.behaviour("coding_agent.15")
async def test_a_command_can_have_a_terminal(tmp_path: Path) -> None:
    command = "test -t 1 && stty size <&1; printf 'a\\033[1mb\\r\\n'; cat; exit 3"
    env = tool_env(tmp_path)
    result = await call(BASH, env, command=command, pty=True)
    assert result.text == "40 120\nab\nCommand exited with code 3"
    assert (await call(BASH, env, command="test -t 1")).text == "Command exited with code 1"
    late = await call(BASH, env, command="sleep 300 & wait", pty=True, timeout_ms=1_000)
    assert late.is_error


@pytest.mark.behaviour("coding_agent.102")
async def test_a_time_limit_ends_what_holds_the_output_and_ignores_the_polite_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coding_agent.tools.process_group.TERM_GRACE_S", 0.2)
    command = (
        "echo before; sh -c 'trap \"\" TERM; sleep 300 & echo $$ $! > pid; wait; wait' & sleep 300"
    )
    result = await call(BASH, tool_env(tmp_path), command=command, timeout_ms=1_000)
    assert result.text == "Command timed out after 1000 ms.\nbefore"
    assert not any(map(lives, pids_in(tmp_path / "pid")))


@pytest.mark.behaviour("coding_agent.103")
async def test_two_hundred_megabytes_without_a_line_break_stay_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head, tail and size are shown, the file is capped, and memory stays flat."""
    monkeypatch.setattr(output_module, "MAX_SPILL_BYTES", 1_000_000)
    tracemalloc.start()
    try:
        command = "head -c 200000000 /dev/zero | tr '\\0' x; printf end"
        result = await call(BASH, tool_env(tmp_path), command=command)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
    path = Path(details(result)["full_output_path"])
    assert path.stat().st_size == 1_000_000
    assert result.text.startswith("x" * 10_000)
    assert f"\n[… cut: 200000003 bytes in all. Full output saved to: {path}]\nx" in result.text
    assert result.text.endswith("xend")
    assert len(result.text) < 51_000


async def test_secrets_are_not_inherited(tmp_path: Path) -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/home/u",
        "LEMON_TERMINAL_BACKENDS_DENY": "x",
        "LEMON_SECRETS_MASTER_KEY": "s",
        "LEMON_STORE_PASSWORD": "s",
        "OPENAI_API_KEY": "s",
        "MY_SERVICE_API_KEY": "s",
        "AWS_SECRET_ACCESS_KEY": "s",
        "brave_api_key": "s",
    }
    env = replace(tool_env(tmp_path), environ=without_secrets(environ))
    result = await call(BASH, env, command="env")
    assert "s" not in [line.partition("=")[2] for line in result.text.splitlines()]
    assert set(without_secrets(environ)) == {"PATH", "HOME", "LEMON_TERMINAL_BACKENDS_DENY"}


async def test_lists_of_commands_see_through_shells(tmp_path: Path) -> None:
    listed = tool_env(tmp_path, policy=ToolPolicy.parse({"allowed_commands": ["ls"]}))
    assert (await call(BASH, listed, command="bash -c 'ls'")).text == "(no output)"
    blocked = tool_env(tmp_path, policy=ToolPolicy.parse({"blocked_commands": ["git push"]}))
    for env, command in [
        (listed, "bash -c 'ls; touch ran'"),
        (listed, "bash -c 'ls $(touch ran)'"),
        (blocked, "bash -c \"git 'push'\""),
        (blocked, 'touch ran; sh -c \'sh -c "git \\"push\\""\''),
    ]:
        with pytest.raises(ToolError, match="does not allow this command"):
            await call(BASH, env, command=command)
    assert not (tmp_path / "ran").exists()


@pytest.mark.behaviour("coding_agent.107")
async def test_bytes_that_are_no_text_are_replaced_and_the_exit_code_is_kept(
    tmp_path: Path,
) -> None:
    result = await call(BASH, tool_env(tmp_path), command="printf 'a\\377b\\351c'; exit 5")
    assert result.text == "a\ufffdb\ufffdc\nCommand exited with code 5"
    assert details(result)["exit_code"] == 5
