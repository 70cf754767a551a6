"""Temporary homes, short socket folders and environments without credentials."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lemon_core.paths import PathSettings

_CREDENTIAL_MARKS = ("_API_KEY", "_TOKEN", "_SECRET", "_BASE_URL", "_PASSWORD")


@contextmanager
def socket_dir() -> Iterator[Path]:
    """A private folder with a short name, for Unix sockets; it goes with the block.

    The test runner's own temporary folder is often too long for a socket path.
    """
    path = Path(tempfile.mkdtemp(prefix="lm", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def temp_home() -> Iterator[PathSettings]:
    """The file layout of an empty home with a short name; it goes with the block."""
    with socket_dir() as path:
        yield PathSettings(path)


def scrubbed_environ(
    home: Path, extra: Mapping[str, str] | None = None, *, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """An environment for a test: `home`, no Lemon setting and no credential, then `extra`.

    With `LEMON_TEST_ALLOW_LIVE_CREDENTIALS=1` the credentials of the caller stay.
    """
    source = os.environ if base is None else base
    live = source.get("LEMON_TEST_ALLOW_LIVE_CREDENTIALS") == "1"
    kept = {
        name: value
        for name, value in source.items()
        if not name.startswith("LEMON_") and (live or not name.endswith(_CREDENTIAL_MARKS))
    }
    return {**kept, "HOME": str(home), **(extra or {})}
