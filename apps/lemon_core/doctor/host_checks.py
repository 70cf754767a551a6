"""What the machine offers, and whether Lemon runs on it now."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

import anyio

from lemon_core.doctor.context import DoctorContext
from lemon_core.doctor.report import Finding, failed, passed, skipped, warned
from lemon_core.single_errors import single_errors
from lemon_core.state_lock import StateDirUnusable, read_holder
from lemon_core.terminal_backends import TerminalPolicy, find_sandbox, terminal_backends

CONNECT_TIMEOUT_S: Final = 2.0
PROGRAM_TIMEOUT_S: Final = 5.0


async def control_port(context: DoctorContext) -> Finding:
    """Whether the control plane of a running Lemon answers, and nobody sits on its port."""
    port = context.env.control_port
    try:
        holder = read_holder(context.paths.runtime_lock)
    except StateDirUnusable as exc:
        return failed(str(exc), f"check the permissions of {context.paths.run_dir}")
    is_open = await _answers(port)
    if holder is None:
        if is_open:
            return warned(
                f"port {port} is in use, and not by Lemon of this home",
                "stop the other program, or set LEMON_CONTROL_PLANE_PORT",
            )
        return skipped("Lemon is not running")
    if is_open:
        return passed(f"Lemon runs (process {holder.pid}) and port {port} answers")
    return skipped(f"Lemon runs (process {holder.pid}) without a control plane on port {port}")


async def lemon_root(context: DoctorContext) -> Finding:
    """Whether the source tree, which `LEMON_PATH` may name, is one."""
    root = context.env.lemon_root
    if root is None:
        return skipped("this Lemon is installed, and LEMON_PATH names no source tree")
    if not root.is_dir():
        return warned(f"LEMON_PATH is no folder: {root}", "correct it or take it away")
    if not (root / "apps" / "lemon_core").is_dir():
        return warned(f"LEMON_PATH holds no Lemon: {root}", "correct it or take it away")
    return passed(f"the source tree is {root}")


async def git(context: DoctorContext) -> Finding:
    """git, which the agent works with all the time."""
    version = await _version(context, "git")
    if version is None:
        return failed("git is not there or does not run", "install git")
    return passed(version)


async def node(context: DoctorContext) -> Finding:
    """node, for the tools that need it."""
    version = await _version(context, "node")
    if version is None:
        return warned("node is not there: tools that need it do not work", "install Node.js")
    return passed(f"node {version}")


async def npm(context: DoctorContext) -> Finding:
    """npm, which comes with node."""
    version = await _version(context, "npm")
    if version is None:
        return warned("npm is not there: tools that need it do not work", "install Node.js")
    return passed(f"npm {version}")


async def backends(context: DoctorContext) -> Finding:
    """Where commands may run, and whether they can be confined."""
    policy = TerminalPolicy.from_environ(context.environ)
    usable = [b.name for b in terminal_backends(policy) if b.is_available]
    if policy.unknown:
        return warned(
            f"the terminal policy names unknown backends: {', '.join(policy.unknown)}",
            f"there are: {', '.join(b.name for b in terminal_backends(policy))}",
        )
    if not usable:
        return warned(
            "no terminal backend may be used: the agent can run no command",
            "change LEMON_TERMINAL_BACKENDS_ALLOW or LEMON_TERMINAL_BACKENDS_DENY",
        )
    sandbox = find_sandbox(context.environ)
    told = ", ".join(usable)
    if not sandbox.is_available:
        return warned(
            f"{told}; the sandbox is unavailable: bwrap is not there, so policies with "
            "sandbox = true refuse commands",
            "install bubblewrap",
        )
    return passed(f"{told}; sandbox {sandbox.program}")


async def _answers(port: int) -> bool:
    """Whether something listens on `port` of this machine."""
    with single_errors(), anyio.move_on_after(CONNECT_TIMEOUT_S):
        try:
            async with await anyio.connect_tcp("127.0.0.1", port):
                return True
        except OSError:
            return False
    return False


async def _version(context: DoctorContext, program: str) -> str | None:
    """The first line of what `program --version` prints; None when it does not run."""
    path = shutil.which(program, path=context.environ.get("PATH", os.defpath))
    if path is None:
        return None
    try:
        with single_errors(), anyio.move_on_after(PROGRAM_TIMEOUT_S):
            done = await anyio.run_process(
                [path, "--version"],
                check=False,
                stderr=subprocess.DEVNULL,
                env=dict(context.environ),
            )
            lines = done.stdout.decode(errors="replace").splitlines()
            return lines[0].strip() if done.returncode == 0 and lines else None
    except OSError:
        return None
    return None
