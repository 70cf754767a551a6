"""Foreign code in a thread that nobody has to wait for.

A thread that hangs must neither keep its caller longer than the caller wants nor the process from
its end; worker threads of a pool would do the latter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

import anyio

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T]) -> T:
    """What `work` gives or raises. A cancelled wait leaves the thread to itself.

    An attempt to end the process (`SystemExit`) is a `RuntimeError`.
    """
    loop, done = asyncio.get_running_loop(), anyio.Event()
    results: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as exc:  # the caller gets it
            failures.append(exc)
        except SystemExit as exc:
            failures.append(RuntimeError(f"it wanted to end the process ({exc})"))
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done.set)

    Thread(target=run, name="lemon extension", daemon=True).start()
    await done.wait()
    if failures:
        raise failures[0]
    return results[0]
