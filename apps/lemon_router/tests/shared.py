"""Routers that share a PostgreSQL store, in one process or in several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from lemon_core.bridges import SubmitReceipt, SubmitResult
from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.nodes import holding_sessions, node_watch
from lemon_core.runs import ExecutionCommand
from lemon_core.store import RunStore, StoreSettings, open_store
from lemon_core.store.node_locks import Answer, NodeLocks
from lemon_core.testing import FakeClock
from lemon_router.router import Router
from lemon_router.shared_ownership import SharedOwnership
from lemon_router.tests.rig import SESSION, make_router
from lemon_router.tests.scripted_engine import ScriptedEngine


class OneAtATime(ScriptedEngine):
    """A gateway that all routers share; it sees whether they keep apart what has to be."""

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        others = [
            run_id
            for run_id, run in self.runs.items()
            if run.terminal is None and run.command.session_key == command.session_key
        ]
        assert others == [], f"{command.run_id} runs beside {others}"
        return await super().submit_execution(command)


class CountedLocks:
    """Counts what a router asks its locks for."""

    def __init__(self, locks: NodeLocks) -> None:
        self.asked: list[str] = []
        attempt = locks.attempt

        async def counted(key: str) -> Answer:
            self.asked.append(key)
            return await attempt(key)

        locks.attempt = counted  # type: ignore[method-assign]  # it is the journey to be counted


@dataclass
class SharedRouter:
    """One router of several."""

    router: Router
    locks: NodeLocks
    asked: list[str]
    wanted: anyio.Event
    """Set when another router wants a session that is held here."""

    async def submit(self, run_id: str, **fields: object) -> SubmitResult:
        request = {"prompt": run_id, "run_id": run_id, "session_key": SESSION, **fields}
        return await self.router.submit(request)


@asynccontextmanager
async def shared_router(
    url: str,
    name: str,
    engine: ScriptedEngine,
    home: Path,
    clock: Clock,
    *,
    bus: Bus | None = None,
    idle_ms: int = 1_000_000_000,
    watching: bool = False,
    runs: RunStore | None = None,
) -> AsyncIterator[SharedRouter]:
    """The router `name`; leaving lets its runs go on, as a router that goes down does."""
    async with (
        open_store(StoreSettings("postgres", url=url), clock) as store,
        holding_sessions(store, name) as locks,
        anyio.create_task_group() as tasks,
    ):
        assert locks is not None
        counted = CountedLocks(locks)
        alive = node_watch(store, "router")
        assert alive is not None
        ownership = SharedOwnership(
            locks,
            store,
            clock,
            tasks,
            router_id=name,
            idle_ms=idle_ms,
            watching=watching,
            alive=alive,
        )
        runs = RunStore(store, clock)
        router = make_router(
            engine,
            store,
            bus or engine.bus,
            clock,
            home,
            tasks,
            router_id=name,
            alive=alive,
            ownership=ownership,
            runs=runs,
        )
        async with ownership.of(router.others):
            await router.recover(runs)
            yield SharedRouter(router, locks, counted.asked, _heard(locks))
            await router.refuse()
        tasks.cancel_scope.cancel()


def _heard(locks: NodeLocks) -> anyio.Event:
    wanted, told = anyio.Event(), locks.watch.wanted

    def hear(key: str) -> None:
        wanted.set()
        told(key)

    locks.watch.wanted = hear
    return wanted


@asynccontextmanager
async def time_passes(clock: FakeClock) -> AsyncIterator[None]:
    """What waits for a time need not wait long."""

    async def pass_on() -> None:
        while True:
            await clock.advance(50)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on)
        yield
        tasks.cancel_scope.cancel()
