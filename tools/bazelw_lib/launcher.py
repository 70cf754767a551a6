"""The command line, the rc file and the environment that start Debian's Bazel.

What belongs to this machine stands here and not in the workspace's `.bazelrc`, so that a machine
with another Bazel sees nothing of it.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.bazelw_lib.paths import Bundle, Cache, Workspace

_DISK_CACHE_MAX = "10G"


def rc_text(bundle: Bundle, cache: Cache, java_home: Path, overrides: Sequence[str]) -> str:
    """Return the rc file of an unpacked Bazel."""
    lines = [
        f"startup --install_base={bundle.root}/usr/share/bazel",
        "startup --trust_install_base",
        f"startup --server_javabase={java_home}",
        *(f"common --override_module={override}" for override in overrides),
        # Shared by all clones: a second one must not pay for the first one's work again.
        f"common --disk_cache={cache.disk}",
        f"common --experimental_disk_cache_gc_max_size={_DISK_CACHE_MAX}",
        f"common --repository_cache={cache.repositories}",
    ]
    if bundle.home.is_relative_to("/tmp"):
        # Sandboxed actions get an empty /tmp, and Bazel's own scripts are links into this folder.
        lines.append(f"common --sandbox_add_mount_pair={bundle.home}")
    return "\n".join(lines) + "\n"


def environment(
    bundle: Bundle, libraries: Path | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return `environ` with what the workspace's rules and programs may use of the cache folder.

    Repository rules and `bazel run` see these variables; actions do not, because their
    environment is fixed (`.bazelrc` passes LEMON_BWRAP to tests).
    """
    offered = {"LEMON_PIP_PATH": str(bundle.pip_path), "LEMON_PATCHELF": str(bundle.patchelf)}
    if libraries is not None:
        offered["LEMON_LIBRARIES"] = str(libraries)
    if shutil.which("bwrap", path=environ.get("PATH")) is None:
        offered["LEMON_BWRAP"] = str(bundle.bwrap)
    # What the user set stays.
    return {**offered, **environ}


def command(bundle: Bundle, workspace: Workspace, arguments: Sequence[str]) -> list[str]:
    """Return the command line that passes `arguments` to the unpacked Bazel."""
    return [
        str(bundle.bazel),
        "--nosystem_rc",
        f"--bazelrc={bundle.rc}",
        f"--bazelrc={workspace.offline_rc}",
        *arguments,
    ]
