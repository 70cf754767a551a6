"""`tools/bazelw install`: puts a `bazel` on PATH."""

import os
from collections.abc import Mapping
from pathlib import Path

from tools.bazelw_lib.host_bazel import WRAPPER_MARK, is_wrapper
from tools.bazelw_lib.report import BazelwError, say

# It looks for the workspace it is called in, so that it serves every clone and outlives this one.
_WRAPPER = f"""\
#!/bin/sh
# {WRAPPER_MARK}: runs tools/bazelw of the workspace around the current folder.
folder=$PWD
while [ -n "$folder" ]; do
    if [ -x "$folder/tools/bazelw" ]; then
        exec "$folder/tools/bazelw" "$@"
    fi
    folder=${{folder%/*}}
done
echo "bazel: $PWD is not inside a workspace that has tools/bazelw" >&2
exit 2
"""


def install(environ: Mapping[str, str]) -> Path:
    """Write `~/.local/bin/bazel` and return its path; somebody else's `bazel` is not replaced."""
    target = Path(environ.get("HOME") or Path.home()) / ".local/bin/bazel"
    if target.exists() and not is_wrapper(target):
        raise BazelwError(f"{target} exists already and is not ours; remove it first")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".bazel.{os.getpid()}")
    temporary.write_text(_WRAPPER, encoding="utf-8")
    temporary.chmod(0o755)
    temporary.replace(target)
    say(f"wrote {target}")
    if str(target.parent) not in environ.get("PATH", "").split(os.pathsep):
        say(f'not on PATH yet; add it with: export PATH="{target.parent}:$PATH"')
    return target
