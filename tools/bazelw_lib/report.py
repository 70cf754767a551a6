"""What the user sees while Bazel is being found or unpacked."""

import sys

REMEDY = "install Bazelisk, or set LEMON_BAZEL to a bazel binary"


class BazelwError(Exception):
    """Bazel cannot be run on this machine; the message is one line that says why."""


def say(text: str) -> None:
    """Print one progress line. stderr, because stdout belongs to Bazel."""
    print(f"bazelw: {text}", file=sys.stderr, flush=True)
