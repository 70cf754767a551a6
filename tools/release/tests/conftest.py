"""The package, unpacked once for each test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lemon_core.update_archive import unpack
from tools.release.tests.installing import Machine, new_machine


@pytest.fixture(scope="module")
def archive() -> Path:
    """The one archive that was built."""
    (found,) = Path("tools/release").glob("lemon-*.tar.gz")
    return found.absolute()


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A machine with nothing but sh, which is everywhere, and Python on its PATH."""
    with new_machine(programs=()) as new:
        yield new


@pytest.fixture(scope="module")
def package(archive: Path, machine: Machine) -> Path:
    """The package, unpacked and closed against writing."""
    folder = machine.root / "p"
    # As an update does it.
    unpack(archive, folder, check=lambda: None)
    for path in folder.rglob("*"):
        path.chmod(path.stat().st_mode & 0o555)
    return folder
