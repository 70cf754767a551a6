"""The command `tools/bazelw`."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tools.bazelw_lib import debian, launcher, libraries
from tools.bazelw_lib.host_bazel import fitting_bazel
from tools.bazelw_lib.install import install
from tools.bazelw_lib.packages import major
from tools.bazelw_lib.paths import Cache, Workspace, cache_home
from tools.bazelw_lib.report import REMEDY, BazelwError, say


def main(arguments: Sequence[str]) -> int:
    """Become Bazel with these arguments; returns only for `install` and for what went wrong."""
    workspace = Workspace(Path(__file__).resolve().parents[2])
    # Otherwise a download would outlive us. Bazel itself gets the default back by exec.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        command, environ = resolve(workspace, arguments, os.environ)
        if list(arguments) == ["install"]:
            _install(command[0])
            return 0
    except BazelwError as error:
        say(str(error))
        return 1
    except OSError as error:
        # No space, no permission, no such folder: the error names the path.
        say(f"Bazel could not be set up ({error}); {REMEDY}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next call goes on from here")
        return 130
    return _become(command, environ)


def resolve(
    workspace: Workspace, arguments: Sequence[str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that run Bazel, unpacking it if need be."""
    found = fitting_bazel(environ, major(workspace.bazel_version), workspace.root)
    if found is not None:
        return [found, *arguments], dict(environ)
    cache = Cache(cache_home(environ))
    bundle = debian.ensure(cache, workspace)
    environment = launcher.environment(bundle, libraries.ensure(cache), environ)
    return launcher.command(bundle, workspace, arguments), environment


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _install(bazel: str) -> None:
    if shutil.which("bazel") == bazel:
        say(f"{bazel} is on PATH and fits; nothing to install")
    else:
        install(os.environ)


def _become(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    # exec: signals and the exit code are Bazel's own, and no second process waits.
    os.execve(command[0], list(command), environ)
