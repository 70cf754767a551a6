"""One process at a time in the cache folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bazelw_lib.report import say


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, waiting for another bazelw that holds it.

    The kernel frees the lock when the process ends, however it ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another bazelw is unpacking; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
