"""One lock per key."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.store.keyed_lock import KeyedLock

pytestmark = pytest.mark.anyio


async def test_holders_of_one_key_take_turns_and_others_do_not_wait() -> None:
    locks, inside = KeyedLock(), list[str]()
    release = anyio.Event()

    async def hold(key: str, name: str) -> None:
        async with locks.hold(key):
            inside.append(name)
            await release.wait()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for key, name in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("", "x1"), ("", "x2")):
                tasks.start_soon(hold, key, name)
            await anyio.wait_all_tasks_blocked()
            assert sorted(inside) == ["a1", "b1", "x1", "x2"]
            release.set()
    assert inside[-1] == "a2"
    assert locks.idle


async def test_a_cancelled_waiter_leaves_nothing() -> None:
    locks = KeyedLock()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks, locks.hold("a"):
            tasks.start_soon(locks.hold("a").__aenter__)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert locks.idle
