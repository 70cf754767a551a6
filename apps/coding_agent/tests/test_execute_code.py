"""Scripts (specification coding_agent 7 `execute_code`, 11.18, 11.25, 11.26)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from coding_agent.foreign_tools import ForeignTool
from coding_agent.registry import ToolRegistry
from coding_agent.tests.askers import Answers, asker
from coding_agent.tests.harness import details, lives, pids_in, tool_env
from coding_agent.tests.scene import scene, tool_turn
from coding_agent.tools.toolset import ShellSettings, ToolEnv
from lemon_agent import AbortSignal, AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_ai.testing import Turn
from lemon_core.approvals import ApprovalTimeout, Denied
from lemon_core.bus import SYSTEM_TOPIC
from lemon_core.config.model import LemonConfig
from lemon_core.config.tools import ExecuteCode
from lemon_core.tool_classes import ToolClassTable
from lemon_core.tool_policy import ToolPolicy
from lemon_core.workspace import Workspace

pytestmark = pytest.mark.anyio

EACH: dict[str, Any] = {"enabled": True}
KEPT: dict[str, Any] = {"enabled": True, "kernel_mode": "session"}
RELOADED = {"reload_id": "1", "reason": "manual", "changed_sources": [], "changed_paths": []}
# A script that has got hold of what passes its calls on.
HELPERS = "h = next(c.cell_contents for c in read.__closure__ if hasattr(c.cell_contents, '_call'))"


class Scripts:
    """The tool of one run, and what it stands on."""

    def __init__(self, env: ToolEnv, answers: Answers, settings: dict[str, Any]) -> None:
        self.env, self.signal = env, AbortSignal()
        registry = ToolRegistry(ShellSettings(), code=lambda: ExecuteCode(**settings))
        bound = registry.bind(env, ToolClassTable(), asker(answers, can_ask=True))
        self.tools: dict[str, AgentTool] = {tool.name: tool for tool in bound}

    async def run(self, script: str, **params: Any) -> AgentToolResult:
        call = ToolCallContext("call_1", {"script": script, **params}, self.signal, lambda _: None)
        with anyio.fail_after(20):
            return await self.tools["execute_code"].execute(call)


@asynccontextmanager
async def scripts(
    folder: Path,
    settings: dict[str, Any] = EACH,
    *,
    policy: dict[str, Any] | None = None,
    answers: Answers | None = None,
    read_only: bool = False,
) -> AsyncIterator[Scripts]:
    env = tool_env(folder, policy=ToolPolicy.parse(policy or {}), read_only=read_only)
    async with env.shared.kernels.running():
        yield Scripts(env, answers or Answers(), settings)


async def test_only_what_a_script_prints_comes_back(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    async with scripts(tmp_path) as here:
        result = await here.run("x = read('a.txt', offset=2)\nprint(x)\nprint(ls(), find('*.txt'))")
        assert result.text.startswith("2: two\nDirectory: .\n- a.txt")
        assert (result.trust, result.is_error) == ("trusted", False)
        about = details(result)
        assert about == {
            "exit_code": 0,
            "truncated": False,
            "full_output_path": None,
            "rpc_calls": 3,
            "rpc_denied": 0,
            "rpc_errors": 0,
            "rpc_bytes": about["rpc_bytes"],
            "rpc_tools": ["find", "ls", "read"],
        }
        programs = "import os\nprint('a')\nos.system('echo b; echo c >&2')\nprint('d')"
        assert (await here.run(programs)).text == "a\nb\nc\nd"
        assert (await here.run("x")).text.splitlines()[-2:] == [
            "NameError: name 'x' is not defined",
            "Script exited with code 1",
        ]
        assert (await here.run("pass")).text == "(no output)"
        assert here.env.shared.kernels.kept_count == 0


async def test_a_script_begins_in_the_working_directory_with_the_environment_of_bash(
    tmp_path: Path,
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')\n")
    (tmp_path / "mine.py").write_text("NAME = 'mine'\n")
    async with scripts(tmp_path) as here:
        result = await here.run("import os, sys, mine\nprint(os.getcwd(), mine.NAME, sys.argv)")
        assert result.text == f"{tmp_path.resolve()} mine ['-c']"
        shown = await here.run(
            "import os\nprint(*sorted(set(os.environ) - {'LC_CTYPE'}), sep='\\n')"
        )
        assert set(shown.text.splitlines()) == set(here.env.environ)


@pytest.mark.behaviour("coding_agent.18")
async def test_a_helper_that_is_denied_can_be_caught(tmp_path: Path) -> None:
    """By the policy, by a person, by nobody being there, and by its own failure."""
    caught = "try:\n    print(grep('x'))\nexcept ToolError as error:\n    print('caught:', error)"
    (tmp_path / "a.txt").write_text("x\n")
    async with scripts(tmp_path, policy={"deny": ["grep"]}) as here:
        result = await here.run(caught)
        assert result.text == "caught: the policy of this run does not allow grep"
        assert details(result)["rpc_denied"] == 1
        uncaught = await here.run("grep('x')")
        assert "ToolError: the policy of this run does not allow grep" in uncaught.text
        assert details(uncaught)["exit_code"] == 1
    for answer, words in (
        (Denied(), "The user denied this call."),
        (ApprovalTimeout("appr_1", None), "nobody gave it in time"),
    ):
        asks = Answers(answer)
        async with scripts(
            tmp_path, policy={"approvals": {"grep": "always"}}, answers=asks
        ) as here:
            result = await here.run(caught)
            assert result.text.startswith("caught: ")
            assert words in result.text
            assert details(result)["rpc_denied"] == 1
            assert [request.tool for request in asks.asked] == ["grep"]
    async with scripts(tmp_path) as here:
        result = await here.run(caught.replace("grep('x')", "read('missing')"))
        assert result.text == "caught: read: missing: no such file"
        wrong = await here.run(caught.replace("grep('x')", "read(limit='x')"))
        assert wrong.text.startswith("caught: read: ")
        assert [details(one)["rpc_errors"] for one in (result, wrong)] == [1, 1]


@pytest.mark.behaviour("coding_agent.18")
async def test_a_forged_or_repeated_call_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("secret\n")
    forged = f"""{HELPERS}
print(read('a.txt'))
for token, number in (("0" * 64, 9), (h._token, 1), (None, 10)):
    h._channel.send(type="call", id=number, token=token, tool="read", args={{"path": "a.txt"}})
    print(h._channel.receive())
print(read('a.txt', 1, 1))
"""
    async with scripts(tmp_path) as here:
        result = await here.run(forged)
        assert result.text.splitlines() == [
            "1: secret",
            "{'error': 'this call does not come from the helpers of the running script'}",
            "{'error': 'this call was made before'}",
            "{'error': 'this call does not come from the helpers of the running script'}",
            "1: secret",
        ]
        assert details(result)["rpc_denied"] == 3


async def test_a_script_that_says_its_own_end_loses_the_kernel(tmp_path: Path) -> None:
    """What it still had to say would be taken for the end of the next script."""
    forged = f"{HELPERS}\nh._channel.send(type='done', exit_code=0, token=h._token)"
    async with scripts(tmp_path, KEPT) as here:
        await here.run(forged)
        spoiled = await here.run("print('second')")
        assert details(spoiled)["error_type"] == "kernel_ended"
        assert (await here.run("print('third')")).text == "third"


async def test_a_run_with_other_rights_gets_a_kernel_of_its_own(tmp_path: Path) -> None:
    """What an earlier run has left there would call helpers with the rights of the later one."""
    async with scripts(tmp_path, KEPT, policy={"deny": ["read"]}) as here:
        await here.run("x = 1")
        assert (await here.run("print(x)")).text == "1"
        more = replace(here.env, policy=ToolPolicy.full_access())
        later = Scripts(more, Answers(), KEPT)
        assert (await later.run("print('x' in globals())")).text == "False"
        elsewhere = Workspace.at(str(here.env.guard.cwd), [str(tmp_path.parent)])
        wider = replace(here.env, guard=replace(here.env.guard, workspace=elsewhere))
        later = Scripts(wider, Answers(), KEPT)
        assert (await later.run("print('x' in globals())")).text == "False"
        assert here.env.shared.kernels.kept_count == 3


async def test_whoever_is_asked_about_commands_is_asked_about_scripts(tmp_path: Path) -> None:
    asks = Answers(Denied())
    async with scripts(tmp_path, policy={"require_approval": ["bash"]}, answers=asks) as here:
        assert (await here.run("open('ran', 'w')")).is_error
    assert [request.tool for request in asks.asked] == ["execute_code"]
    assert not (tmp_path / "ran").exists()


async def test_only_the_five_helpers_are_there_and_the_configuration_takes_some_away(
    tmp_path: Path,
) -> None:
    asking = f"{HELPERS}\n" + told("h._call('bash', {'command': 'id'})")
    async with scripts(tmp_path) as here:
        assert (await here.run(asking)).text == (
            "there is no helper bash (there are: read, grep, find, ls, webfetch)"
        )
    async with scripts(tmp_path, {**EACH, "tools": ("read", "bash")}) as here:
        result = await here.run(f"{asking}\nls()")
        assert result.text.startswith("there is no helper bash (there are: read)\n")
        assert "NameError: name 'ls' is not defined" in result.text


@pytest.mark.behaviour("coding_agent.18")
async def test_the_budgets_bind(tmp_path: Path) -> None:
    """Calls, bytes of their results, output, and time, whatever the script is at."""
    (tmp_path / "a.txt").write_text("x" * 40)
    four = "\n".join([told("read('a.txt')")] * 4)
    async with scripts(tmp_path, {**EACH, "max_rpc_calls": 2}) as here:
        result = await here.run(four)
        assert result.text.count("a script may call its helpers 2 times") == 2
    async with scripts(tmp_path, {**EACH, "max_rpc_result_bytes": 100}) as here:
        result = await here.run(four)
        assert result.text.count("read: helpers give a script 100 bytes in all") == 2
    async with scripts(tmp_path, {**EACH, "max_output_bytes": 1_000}) as here:
        result = await here.run("print('a' * 3_000 + 'b' * 3_000)")
        head, note, tail = result.text.split("\n")
        saved = Path(details(result)["full_output_path"])
        assert (head, tail) == ("a" * 400, "b" * 599)
        assert note == f"[… cut: 6001 bytes in all. Full output saved to: {saved}]"
        assert saved.read_text() == "a" * 3_000 + "b" * 3_000 + "\n"
        assert saved.stat().st_mode & 0o777 == 0o600
    async with scripts(tmp_path, {**EACH, "timeout_ms": 1_000}) as here:
        result = await here.run(
            "import subprocess, os\n"
            "child = subprocess.Popen(['sleep', '300'])\n"
            "open('pid', 'w').write(f'{os.getpid()} {child.pid}')\n"
            "print('so far', flush=True)\n"
            "try:\n    child.wait()\nfinally:\n    print('cleaned up')",
            timeout_ms=600_000,
        )
        assert result.text.startswith("Script timed out after 1000 ms.\nso far\ncleaned up")
        assert details(result)["error_type"] == "timeout"
        assert not any(map(lives, pids_in(tmp_path / "pid")))
    async with scripts(tmp_path) as here:
        long = await here.run(told("read('x' * 300_000)"))
        assert "read: these arguments cannot be passed on" in long.text
    async with scripts(tmp_path, KEPT) as here:
        # How Python writes a file's name that is no UTF-8, and a number that JSON does not have.
        calls = ("read('a' + chr(0xdcff))", "read('a', float('nan'))")
        odd = await here.run("\n".join(map(told, calls)))
        assert odd.text.count("read: these arguments cannot be passed on") == 2


@pytest.mark.behaviour("coding_agent.18")
async def test_state_is_kept_after_scripts_that_end_by_themselves(tmp_path: Path) -> None:
    async with scripts(tmp_path, KEPT) as here:
        first = await here.run("x = 41\ndef f():\n    return 1 / 0")
        assert {k: v for k, v in details(first).items() if not k.startswith("rpc_")} == {
            "exit_code": 0,
            "truncated": False,
            "full_output_path": None,
            "persistent": True,
            "kernel_reused": False,
            "reset_performed": False,
            "state_retained": True,
            "duration_ms": 0,
            "fallback_reason": None,
        }
        broken = await here.run("x += 1\nf()")
        assert 'File "<cell 1>", line 3, in f' in broken.text
        assert details(broken)["exit_code"] == 1
        left = await here.run("import sys\nx += 1\nsys.exit(7)")
        assert (left.text, details(left)["exit_code"]) == ("Script exited with code 7", 7)
        asked = await here.run("x += 1\ninput('name? ')")
        assert "UnsupportedInput: input() has no answer here" in asked.text
        syntax = await here.run("x +=")
        assert "SyntaxError" in syntax.text
        kept = [details(one) for one in (broken, left, asked, syntax)]
        assert all(one["kernel_reused"] and one["state_retained"] for one in kept)
        assert (await here.run("print(x)")).text == "44"


@pytest.mark.behaviour("coding_agent.18")
async def test_state_is_lost_after_a_reset_a_time_out_a_crash_and_an_abort(tmp_path: Path) -> None:
    known = "print('x' in globals())"
    os.mkfifo(tmp_path / "ready")
    async with scripts(tmp_path, KEPT) as here:
        await here.run("x = 1")
        fresh = await here.run(known, reset=True)
        assert (fresh.text, details(fresh)["reset_performed"]) == ("False", True)
        await here.run("x = 1")
        slow = await here.run("import time\ntime.sleep(300)", timeout_ms=1_000)
        assert (details(slow)["state_retained"], slow.is_error) == (False, True)
        assert (await here.run(known)).text == "False"
        await here.run("x = 1")
        crash = await here.run("import os\nprint('once', flush=True)\nos._exit(9)")
        assert crash.text == "once\nThe Python process ended in the middle of the script."
        assert (details(crash)["exit_code"], details(crash)["fallback_reason"]) == (9, None)
        assert (await here.run(known)).text == "False"
        await here.run("x = 1")
        results: list[AgentToolResult] = []

        async def long() -> None:
            script = "print('begun')\nopen('ready', 'w').write('x')\nimport time\ntime.sleep(300)"
            with scope:
                results.append(await here.run(script))

        scope = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(long)
            await opened(tmp_path / "ready")
            here.signal.abort()
            scope.cancel()
        assert [one.text for one in results] == ["interrupted, outcome unknown"]
        assert details(results[0])["output"].startswith("begun")
        assert here.env.shared.kernels.kept_count == 0
        assert (await here.run(known)).text == "False"


@pytest.mark.behaviour("coding_agent.18")
async def test_code_that_has_begun_is_never_begun_again(tmp_path: Path) -> None:
    """Not even where a kernel that cannot be kept is replaced by one for the call alone."""
    async with scripts(tmp_path, KEPT) as here:
        crash = await here.run("open('runs', 'a').write('x')\nimport os\nos._exit(1)")
        assert details(crash)["fallback_reason"] is None
        assert (tmp_path / "runs").read_text() == "x"


async def test_a_python_that_cannot_start_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho this is no python >&2\nexit 3\n")
    broken.chmod(0o755)
    for python, words in ((str(broken), "this is no python"), ("/no/python", "No such file")):
        for mode in (EACH, KEPT):
            async with scripts(tmp_path, {**mode, "python_path": python}) as here:
                with pytest.raises(ToolError, match=rf"{python} cannot be used: .*{words}"):
                    await here.run("print(1)")


async def test_text_from_outside_marks_the_result_and_every_later_one_of_its_kernel(
    tmp_path: Path,
) -> None:
    async with scripts(tmp_path, KEPT) as here:
        assert (await here.run("print(1)")).trust == "trusted"
        refused = (
            "try:\n    webfetch('http://127.0.0.1/')\nexcept ToolError as e:\n    text = str(e)"
        )
        assert (await here.run(refused)).trust == "untrusted"
        assert (await here.run("print(text)")).trust == "untrusted"
        assert (await here.run("print(1)", reset=True)).trust == "trusted"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"allowed_commands": ["ls"]}, "the policy allows only some commands"),
        ({"blocked_commands": ["rm"]}, "the policy allows only some commands"),
        ({"sandbox": True}, "this machine has none: install bubblewrap"),
    ],
)
async def test_what_bash_may_not_do_a_script_may_not_either(
    tmp_path: Path, policy: dict[str, Any], words: str
) -> None:
    script = "open('ran', 'w')"
    async with scripts(tmp_path, policy=policy) as here:
        here.env.environ["PATH"] = str(tmp_path)  # type: ignore[index]  # a plain dict of the test
        with pytest.raises(ToolError, match=words):
            await here.run(script)
    async with scripts(tmp_path, read_only=True) as here:
        with pytest.raises(ToolError, match="the workspace is read-only"):
            await here.run(script)
    async with scripts(tmp_path, policy={"deny": ["bash"]}) as here:
        assert "execute_code" not in here.tools
    async with scripts(tmp_path, policy={"profile": "safe_mode"}) as here:
        assert "execute_code" not in here.tools
    assert not (tmp_path / "ran").exists()


async def test_a_sandbox_holds_the_whole_kernel(tmp_path: Path) -> None:
    """Bubblewrap is called as for `bash`; one that only passes on shows that kernels work in it."""
    folder, programs = tmp_path / "work", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    fake = programs / "bwrap"
    fake.write_text(
        '#!/bin/sh\necho "$@" | sed "s/ -- .*//" > seen\n'
        'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    fake.chmod(0o755)
    env = tool_env(folder, policy=ToolPolicy.parse({"sandbox": True}))
    env = replace(env, environ={**env.environ, "PATH": f"{programs}:/usr/bin:/bin"})
    async with env.shared.kernels.running():
        here = Scripts(env, Answers(), KEPT)
        assert (await here.run("x = 1\nprint(ls())")).text.endswith("1 entry")
        assert (await here.run("print(x)")).text == "1"
    assert f"--bind {folder.resolve()} {folder.resolve()}" in (folder / "seen").read_text()


@pytest.mark.behaviour("coding_agent.25")
async def test_switching_it_on_changes_only_the_end_of_the_list(tmp_path: Path) -> None:
    env = tool_env(tmp_path)
    settings = ExecuteCode()
    registry = ToolRegistry(ShellSettings(), code=lambda: settings)

    async def execute(_: ToolCallContext) -> AgentToolResult:
        raise AssertionError

    lent = [ForeignTool.of(AgentTool("lent", "", {}, execute), "gateway")]
    table = ToolClassTable()
    without = [tool.name for tool in registry.bind(env, table, asker(Answers()), lent)]
    settings = ExecuteCode(enabled=True)
    on = registry.bind(env, table, asker(Answers()), lent)
    again = registry.bind(env, table, asker(Answers()), lent)
    assert [tool.name for tool in on] == [*without, "execute_code"]
    assert on[-1].parameters is again[-1].parameters
    settings = ExecuteCode()
    assert [tool.name for tool in registry.bind(env, table, asker(Answers()), lent)] == without


@pytest.mark.behaviour("coding_agent.25")
async def test_switching_it_on_leaves_the_rest_of_the_prompt(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="one"), Turn(text="two")) as here:
        await here.run("go")
        switch(here.runtime, **EACH)
        await here.run("go")
        without, on = (request.body for request in here.server.requests)
        assert on["messages"] == without["messages"]
        assert on["tools"][:-1] == without["tools"]
        assert on["tools"][-1]["function"]["name"] == "execute_code"


async def test_a_run_uses_it_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the executor: the kernel of a call ends with it, the spill file is the session's."""
    script = "print(read('a.txt'))\nimport os\nopen('pid', 'w').write(str(os.getpid()))"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))  # others use the real one meanwhile
    async with scene(tmp_path, tool_turn("execute_code", script=script), Turn(text="ok")) as here:
        switch(here.runtime, **EACH)
        (here.cwd / "a.txt").write_text("hello\n")
        live = await here.run()
        assert live.completed.ok
        (done,) = [a for a in live.actions if a.phase == "completed"]
        assert (done.action.kind, done.ok) == ("tool", True)
        assert here.shown()[-1] == ("tool", "1: hello")
        assert not any(map(lives, pids_in(here.cwd / "pid")))
    assert list(temporary.iterdir()) == []


@pytest.mark.behaviour("coding_agent.18")
async def test_kernels_outlive_a_run_and_end_when_they_are_switched_off(tmp_path: Path) -> None:
    keeping = "import os\nopen('pid', 'w').write(str(os.getpid()))\nx = 5"
    turns = (
        *(tool_turn("execute_code", script=keeping), Turn(text="one")),
        *(tool_turn("execute_code", script="print(x)"), Turn(text="two")),
    )
    async with scene(tmp_path, *turns) as here:
        switch(here.runtime, **KEPT)
        first = await here.run()
        await here.run("again", resume=first.completed.resume)
        assert here.shown()[-1] == ("tool", "5")
        (pid,) = pids_in(here.cwd / "pid")
        assert lives(pid)
        switch(here.runtime, **EACH)
        here.runtime.bus.publish_event(SYSTEM_TOPIC, "config_reloaded", RELOADED)
        with anyio.fail_after(5):
            while lives(pid):
                await anyio.lowlevel.checkpoint()


def told(call: str) -> str:
    """A script that prints what a call of a helper gives, or why it gives nothing."""
    return f"try:\n    print({call})\nexcept ToolError as error:\n    print(error)"


async def opened(fifo: Path) -> None:
    """Return when a script has written to the pipe."""
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(fifo.read_text, abandon_on_cancel=True)


def switch(runtime: Any, **settings: Any) -> None:
    """The configuration as it is after a reload."""
    config: LemonConfig = runtime.config
    tools = config.runtime.tools.model_copy(update={"execute_code": ExecuteCode(**settings)})
    section = config.runtime.model_copy(update={"tools": tools})
    runtime.config = config.model_copy(update={"runtime": section})
