"""What a folder of checkpoints is known to hold (specification lemon_core 12)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lemon_core import checkpoint_listing
from lemon_core.checkpoint_folder import Checkpoint, CheckpointFolder
from lemon_core.checkpoint_listing import Stored, scan


def header(number: int) -> Checkpoint:
    return Checkpoint(f"chk_{number:016x}", "state", "sess", 1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were looked through."""
    seen: list[Path] = []

    def counted(path: Path, scan: Callable[[Path], list[Stored]] = scan) -> list[Stored]:
        seen.append(path)
        return scan(path)

    monkeypatch.setattr(checkpoint_listing, "scan", counted)
    return seen


def test_writing_looks_through_the_folder_once(tmp_path: Path, looks: list[Path]) -> None:
    folder = CheckpointFolder(tmp_path / "kept", max_bytes=40 * 4_096)
    folder.tidy()
    usages = [folder.write(header(number), {}) for number in range(100)]
    assert len(looks) == 1
    assert usages[-1] == folder.usage()
    assert usages[-1].count == 40
    orders = [stored.name for stored in scan(folder.path)]
    assert orders == [f"chk_{number:016x}.json" for number in range(60, 100)]


def test_what_another_process_does_is_seen(tmp_path: Path, looks: list[Path]) -> None:
    """Also when it does so within one tick of the file system's clock."""
    one, other = (CheckpointFolder(tmp_path / "kept", max_bytes=3 * 4_096) for _ in range(2))
    for number in range(0, 10, 2):
        one.write(header(number), {})
        moment = os.stat(one.path).st_mtime_ns
        other.write(header(number + 1), {})
        os.utime(one.path, ns=(moment, moment))
    assert [stored.name[-6] for stored in scan(one.path)] == ["7", "8", "9"]
    assert one.write(header(10), {}).count == 3
    assert [stored.name[-6] for stored in scan(one.path)] == ["8", "9", "a"]


def test_what_a_person_removes_is_seen(tmp_path: Path, looks: list[Path]) -> None:
    folder = CheckpointFolder(tmp_path / "kept")
    folder.write(header(1), {})
    os.unlink(folder.path / f"{header(1).id}.json")
    os.utime(folder.path, ns=(1, 1))
    assert folder.write(header(2), {}).count == 1
    folder.delete([header(2).id])
    assert folder.write(header(3), {}).count == 1
    assert len(looks) == 3


def test_a_lock_file_that_holds_no_number_is_as_good_as_a_new_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "kept")
    folder.write(header(1), {})
    (folder.path / ".lock").write_text("nonsense")
    assert folder.write(header(2), {}).count == 2
    assert folder.write(header(3), {}).count == 3
