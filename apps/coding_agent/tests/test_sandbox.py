"""`sandbox = true` (specification coding_agent 7 and 11.15)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coding_agent.tests.harness import call, kept_in, tool_env
from coding_agent.tools.shell import bash_tool
from coding_agent.tools.toolset import ToolEnv
from lemon_agent import ToolError
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

BASH = bash_tool(60_000)


def sandboxed(folder: Path, path: str, *, read_only: bool = False, **policy: object) -> ToolEnv:
    parsed = ToolPolicy.parse({"sandbox": True, **policy})
    env = tool_env(folder, policy=parsed, read_only=read_only)
    return replace(env, environ={**env.environ, "PATH": path})


@pytest.mark.behaviour("coding_agent.15")
async def test_a_sandbox_that_is_asked_for_and_absent_refuses(tmp_path: Path) -> None:
    env = sandboxed(tmp_path, str(tmp_path / "empty"))
    for params in ({}, {"background": True}, {"pty": True}):
        with pytest.raises(ToolError, match=r"this machine has none: install bubblewrap"):
            await call(BASH, env, command="touch ran", **params)
    assert not (tmp_path / "ran").exists()


async def arguments(folder: Path, env: ToolEnv) -> list[str]:
    """What a bubblewrap that only writes down its arguments is called with."""
    fake = folder.parent / "fake" / "bwrap"
    fake.parent.mkdir()
    note = "import json, sys; print(json.dumps(sys.argv[1:]))"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{note}" "$@"\n')
    fake.chmod(0o755)
    result = await call(BASH, env, command="touch ran")
    assert not (folder / "ran").exists()
    found: list[str] = json.loads(result.text)
    return found


@pytest.mark.parametrize("offline", [False, True])
async def test_only_the_workspace_can_be_written(tmp_path: Path, offline: bool) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    kept_in(folder).mkdir()
    deny = ["external"] if offline else []
    env = sandboxed(folder, f"{tmp_path / 'fake'}:/bin:/usr/bin", deny_classes=deny)
    root = str(folder.resolve())
    assert await arguments(folder, env) == [
        "--die-with-parent",
        "--unshare-pid",
        "--unshare-ipc",
        *(["--unshare-net"] if offline else []),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
        *("--bind", root, root, "--tmpfs", str(kept_in(folder).resolve())),
        *("--chdir", root, "--", "/bin/bash", "-c", "touch ran"),
    ]


async def test_a_read_only_workspace_is_read_only_inside(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    env = sandboxed(folder, f"{tmp_path / 'fake'}:/bin:/usr/bin", read_only=True)
    argv = await arguments(folder, env)
    at = argv.index(str(folder.resolve()))
    assert argv[at - 1] == "--ro-bind"


def real_path() -> str | None:
    """A PATH on which a bubblewrap is that works here."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    probe = [found, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    works = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return os.environ["PATH"] if works else None


@pytest.mark.skipif(real_path() is None, reason="no bubblewrap that works")
async def test_a_command_in_the_sandbox_writes_in_the_workspace_alone(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    kept_in(folder).mkdir()
    (kept_in(folder) / "secret").touch()
    path = real_path()
    assert path is not None
    script = "\n".join(
        [
            "import os",
            "open('inside', 'w').close()",
            f"print(os.path.exists({str(kept_in(folder) / 'secret')!r}))",
            "try: open('/usr/lemon-was-here', 'w')",
            "except OSError as exc: print(type(exc).__name__)",
        ]
    )
    (folder / "try.py").write_text(script)
    env = sandboxed(folder, path)
    result = await call(BASH, env, command=f"{sys.executable} try.py")
    assert result.text == "False\nOSError"
    assert (folder / "inside").exists()
    late = await call(BASH, env, command="sleep 300 & sleep 300", timeout_ms=1_000)
    assert late.is_error
