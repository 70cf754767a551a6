#!/bin/sh
# Starts Lemon @VERSION@ with the machine's own Python @PYTHON@.
#
# Two programs in one file. sh reads up to `exec`; for Python that part is a text without use, and
# its program follows. Nothing but sh and Python is needed, and there is no second start.
"true" '''\'
for name in "${LEMON_PYTHON:-python@PYTHON@}" "${LEMON_PYTHON:-python3}"; do
    found=$(command -v "$name") || continue
    case $found in
        # The stand-in of a version manager: it may have no such Python, and it takes its time.
        */shims/*) found=$("$found" -I -S -c "import sys; print(sys.executable)" 2>/dev/null) || continue ;;
    esac
    # -I: no module of the working directory and no PYTHON... variable. -S, -B: no packages of the
    # machine, and no file written into this folder.
    exec "$found" -I -S -B "$0" "$@"
done
echo "lemon: no ${LEMON_PYTHON:-python@PYTHON@} found: install Python @PYTHON@, or set LEMON_PYTHON to one" >&2
exit 1
'''

import os
import sys

if sys.version_info[:2] != tuple(map(int, "@PYTHON@".split("."))):
    sys.exit(
        f"lemon: this package needs Python @PYTHON@, and {sys.executable} is "
        f"{sys.version_info[0]}.{sys.version_info[1]}: install Python @PYTHON@, or set LEMON_PYTHON to one"
    )

# By its own name, also behind links: the rest lies beside it.
lib = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "lib")
# After the standard library: no package can take the place of a part of it.
sys.path += [os.path.join(lib, "app"), os.path.join(lib, "site")]

try:
    from tools.release.launcher import lemon

    lemon()
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in sys.stdlib_module_names:
        raise
    # Debian leaves parts out of its smallest Python.
    sys.exit(
        f"lemon: {sys.executable} has no module {missing}: install all of Python @PYTHON@, "
        "or set LEMON_PYTHON to one"
    )
