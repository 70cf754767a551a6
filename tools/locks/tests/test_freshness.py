"""The locks of the workspace are fresh, and a stale one is told from a fresh one."""

from pathlib import Path

import pytest

from tools.locks.freshness import header, stale_reason

THIRD_PARTY = Path("third_party")


@pytest.mark.parametrize("name", ["requirements", "models"])
def test_the_locks_of_the_workspace_are_fresh(name: str) -> None:
    source = THIRD_PARTY / f"{name}.in"
    lock = (THIRD_PARTY / f"{name}_lock.txt").read_text(encoding="utf-8")
    assert stale_reason(source.name, source.read_bytes(), lock) is None


def test_a_lock_made_from_the_source_is_fresh() -> None:
    lock = header("some.in", b"anyio\n") + "anyio==4.0 \\\n"
    assert stale_reason("some.in", b"anyio\n", lock) is None


def test_a_changed_source_makes_the_lock_stale() -> None:
    lock = header("some.in", b"anyio\n")
    reason = stale_reason("some.in", b"anyio\nrich\n", lock)
    assert reason is not None
    assert reason.startswith("some.in changed after its lock was made")


def test_a_lock_without_a_digest_is_stale() -> None:
    reason = stale_reason("some.in", b"anyio\n", "anyio==4.0 \\\n")
    assert reason is not None
    assert "records no digest" in reason
