"""Commands under bubblewrap: the workspace can be written, the rest only read, Lemon's own folder
not even that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lemon_agent import ToolError
from lemon_core.terminal_backends import find_sandbox
from lemon_core.workspace import Workspace, is_inside


def sandboxed(
    argv: Sequence[str],
    *,
    cwd: Path,
    workspace: Workspace,
    private_dir: Path,
    network: bool,
    environ: Mapping[str, str],
) -> list[str]:
    """`argv` as a call of bubblewrap; raises `ToolError` when the machine has none.

    It stays in the process group of its caller (no `--new-session`), so that the end of the group
    is the end of everything inside.
    """
    program = find_sandbox(environ).program
    if program is None:
        raise ToolError(
            "the policy asks for a sandbox, and this machine has none: install bubblewrap (bwrap)"
        )
    bind = "--ro-bind" if workspace.read_only else "--bind"
    roots = [part for root in workspace.roots for part in (bind, root, root)]
    hidden = ["--tmpfs", str(private_dir)] if private_dir.is_dir() else []
    # Later mounts lie over earlier ones: a workspace inside the hidden folder is seen again.
    inside = any(is_inside(root, str(private_dir)) for root in workspace.roots)
    return [
        program,
        "--die-with-parent",
        "--unshare-pid",
        "--unshare-ipc",
        *([] if network else ["--unshare-net"]),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
        *(hidden + roots if inside else roots + hidden),
        *("--chdir", str(cwd), "--"),
        *argv,
    ]
