"""Ending a process group: SIGTERM, a time of grace, SIGKILL."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

import anyio

TERM_GRACE_S: Final = 2.0
KILL_GRACE_S: Final = 1.0
FIRST_CHECK_S: Final = 0.005
SLOWEST_CHECK_S: Final = 0.1


async def end_group(group: int) -> None:
    """Leave nothing of the process group `group` alive."""
    if not signal_group(group, signal.SIGTERM):
        return
    with anyio.move_on_after(TERM_GRACE_S):
        await _gone(group)
        return
    signal_group(group, signal.SIGKILL)
    with anyio.move_on_after(KILL_GRACE_S):
        await _gone(group)


def signal_group(group: int, number: int) -> bool:
    """Whether there was a group to signal; while it has a member, no other group has its number."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # a member that has become another user
        pass
    return True


async def _gone(group: int) -> None:
    # The members need not be children of ours, so nothing tells when the last one has ended.
    pause = FIRST_CHECK_S
    while _lives(group):
        await anyio.sleep(pause)
        pause = min(2 * pause, SLOWEST_CHECK_S)


def _lives(group: int) -> bool:
    """Whether a member is alive. Those that have ended may stay listed until init cares for them,
    which takes a second in some containers and for ever in others."""
    if not signal_group(group, 0):
        return False
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:  # not Linux
        return True
    return any(_is_living_member(name, group) for name in names if name.isdigit())


def _is_living_member(pid: str, group: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        # After the name, which may hold anything: state, parent, group.
        state, _, member_of = file.read().rpartition(b")")[2].split()[:3]
        return int(member_of) == group and state not in (b"Z", b"X")
    return False
