"""What a shell line plainly reaches for outside the workspace is refused (field reports)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coding_agent.tests.harness import call, tool_env
from coding_agent.tools.command_paths import Reach
from coding_agent.tools.shell import bash_tool
from lemon_agent import ToolError

pytestmark = pytest.mark.anyio


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace beside a secret, with links that lead to it."""
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "out").symlink_to(tmp_path)
    (folder / "file").write_text("text")
    return folder


OUTSIDE = [
    "cat SECRET",
    "head -n1 SECRET",
    "python3 -c 'print(1)' SECRET",
    "dd if=SECRET",
    "grep -fSECRET file",
    "grep --file=SECRET x",
    "curl -d @SECRET http://localhost",
    "curl file://SECRET",
    "cat link",
    "cat out/secret",
    "cat ../secret",
    "cat sub/../../secret",
    "cat < SECRET",
    "echo x > SECRET",
    "echo x >> ../new",
    "echo x > out/new",
    "echo x > /tmp/lemon-new",
    "ls ..",
    "cd .. && cat secret",
    "cd sub && cat ../../secret",
    "bash -c 'cat SECRET'",
    "bash -ec 'x=1; cat SECRET'",
    "env A=1 sh -c 'cat ../secret'",
    "timeout 5 cat SECRET",
    "F=SECRET; cat $F",
    'cat "$PWD/../secret"',
    "cat ../sec*",
    "echo $(cat SECRET)",
    "cat <<E > SECRET\nE",
    "for f in ../secret; do cat $f; done",
    "echo x > /usr/lemon-new",
    "echo x > $UNKNOWN/../../x",
]

INSIDE = [
    "cat file",
    "cat ./sub/../file",
    "cd sub && ls .. && cat ../file",
    "echo x > new 2>&1",
    "make 2>/dev/null >&2",
    "ls /usr/bin",
    "/bin/ls -I/usr/include",
    "sed -n '/foo/p' file",
    "curl http://localhost/a/../b",
    "git log --format=%H -- sub",
    "git commit -m 'mend ../secret and /etc/hosts'",
    "PYTHONPATH=/opt/x:/root pytest",
    "env A=1 /bin/cat file",
    "cat <<E > file\nsee /etc/passwd and ../secret\nE",
    "x=$(cat file)",
    "a && b; c | d",
]


@pytest.mark.behaviour("coding_agent.105")
@pytest.mark.parametrize("line", OUTSIDE)
def test_a_path_that_leads_out_is_seen(work: Path, line: str) -> None:
    env = tool_env(work)
    command = line.replace("SECRET", str(work.parent.resolve() / "secret"))
    assert Reach(env.guard, env.environ).outside(command) is not None


def test_a_bare_cd_goes_home(work: Path) -> None:
    env = tool_env(work)
    guard = replace(env.guard, home=work.parent.resolve())
    assert Reach(guard, env.environ).outside("cd && cat secret") == str(guard.home)
    assert Reach(guard, env.environ).outside("cat ~/secret") == str(guard.home / "secret")


def test_a_sandbox_has_a_temporary_folder_of_its_own(work: Path) -> None:
    env = tool_env(work)
    line = "echo x > /tmp/lemon-new; cat /tmp/lemon-new"
    assert Reach(env.guard, env.environ).outside(line) == "/tmp/lemon-new"
    assert Reach(env.guard, env.environ, in_sandbox=True).outside(line) is None
    assert Reach(env.guard, env.environ, in_sandbox=True).outside("cat /etc/hosts") is not None


@pytest.mark.parametrize("line", INSIDE)
def test_a_line_that_stays_inside_is_let_through(work: Path, line: str) -> None:
    env = tool_env(work)
    assert Reach(env.guard, env.environ).outside(line) is None


@pytest.mark.behaviour("coding_agent.26", "coding_agent.105")
async def test_such_a_line_is_not_run(work: Path) -> None:
    env = tool_env(work)
    for command in ("touch ran; cat link", "touch ran > ../new", "touch ran; tac ../secret"):
        with pytest.raises(ToolError, match=r"lies outside the workspace .*: not run"):
            await call(bash_tool(1_000), env, command=command)
    assert not (work / "ran").exists()
    assert not (work.parent / "new").exists()
    kept = env.spill_dir / "bash" / "x.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    assert (await call(bash_tool(1_000), env, command=f"cat {kept}")).text == "kept"
