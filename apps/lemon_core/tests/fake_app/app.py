"""Components whose life is told to the journal of their runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from lemon_core.runtime import Runtime


class Journal:
    """What happened in one runtime, in order; kept in its home, where it outlives a failed boot."""

    def __init__(self, runtime: Runtime) -> None:
        self.path = runtime.paths.home / "journal.txt"
        self.crash = anyio.Event()

    @property
    def lines(self) -> list[str]:
        """What was noted so far."""
        return self.path.read_text().splitlines()

    def note(self, line: str) -> None:
        """Write down that something happened."""
        with self.path.open("a") as file:
            file.write(f"{line}\n")


@asynccontextmanager
async def first(runtime: Runtime) -> AsyncIterator[None]:
    """Starts, takes part in every drain step, stops."""
    journal = runtime.service(Journal)

    async def refuse() -> None:
        journal.note("first refuse")

    async def end() -> None:
        journal.note("first end")

    async def relay() -> None:
        journal.note("first relay")

    runtime.on_drain("relay", relay)
    runtime.on_drain("end", end)
    runtime.on_drain("refuse", refuse)
    journal.note("first up")
    try:
        yield
    finally:
        journal.note("first down")


@asynccontextmanager
async def second(runtime: Runtime) -> AsyncIterator[None]:
    """Starts, fails in a drain step, stops."""
    journal = runtime.service(Journal)

    async def refuse() -> None:
        raise RuntimeError("cannot refuse")

    runtime.on_drain("refuse", refuse)
    journal.note("second up")
    try:
        yield
    finally:
        journal.note("second down")


def refuse(what: str) -> None:
    """Fail as a component does that finds its port in use."""
    raise OSError(f"{what} is taken")


@asynccontextmanager
async def broken(runtime: Runtime) -> AsyncIterator[None]:
    """Does not start."""
    runtime.service(Journal).note("broken tried")
    refuse("port 1")
    yield


@asynccontextmanager
async def broken_inside(runtime: Runtime) -> AsyncIterator[None]:
    """Does not start, and says so from inside a task group."""
    async with anyio.create_task_group():
        refuse(runtime.profile.name)
        yield


@asynccontextmanager
async def crashing(runtime: Runtime) -> AsyncIterator[None]:
    """Runs a task that fails when the journal's event is set."""
    journal = runtime.service(Journal)

    async def task() -> None:
        await journal.crash.wait()
        raise ValueError("crashed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task)
        yield
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def hanging(runtime: Runtime) -> AsyncIterator[None]:
    """Never finishes any step, nor its own end."""
    journal = runtime.service(Journal)
    for step in ("refuse", "end", "relay"):
        runtime.on_drain(step, anyio.sleep_forever)
    try:
        yield
    finally:
        journal.note("hanging")
        await anyio.sleep_forever()


@asynccontextmanager
async def needs_store(runtime: Runtime) -> AsyncIterator[None]:
    """Writes at its very end: the store must still be open, the lock still held."""
    yield
    await runtime.store.put("things", "last", "words")
