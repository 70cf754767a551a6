@SHEBANG@
"""Starts @MODULE@:@FUNCTION@ (tools/release/program.bzl)."""

import os
import sys


def runfiles(program):
    """The folder with all that the program needs: beside it, or the one that it lies in."""
    while True:
        if os.path.isdir(program + ".runfiles"):
            return program + ".runfiles"
        before, mark, _ = program.rpartition(".runfiles" + os.sep)
        if mark:
            return before + ".runfiles"
        if not os.path.islink(program):
            sys.exit(program + ": its files are not beside it: build it again")
        program = os.path.join(os.path.dirname(program), os.readlink(program))


root = runfiles(os.path.abspath(__file__))
# After the standard library: no package can take the place of a part of it.
sys.path += [os.path.join(root, path) for path in @IMPORTS@]

from @MODULE@ import @FUNCTION@

@FUNCTION@()
