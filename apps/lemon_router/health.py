"""What the router checks of itself; core's `http.health` asks, reports and serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import anyio

from lemon_core.clock import Clock
from lemon_core.http.health import Check
from lemon_router.admission import Admission

APP: Final = "lemon_router"
CUSTOM_CHECKS: Final = "router_health_checks"
ENGINE_WAIT_S: Final = 0.5
PORT_KEY: Final = "health_port in [router]"


class CheckedRouter(Protocol):
    """The part of the router that is looked at."""

    async def counts(self) -> dict[str, int]:
        """Active, queued, completed today."""

    async def engine_available(self) -> bool:
        """True when a gateway answers."""

    def live_records(self) -> Sequence[Admission]:
        """The records of the runs that are not over."""


def router_checks(
    router: CheckedRouter,
    clock: Clock,
    *,
    run_process_limit: int | None,
    running: Check,
    registered: Check,
) -> dict[str, Check]:
    """The built-in checks; `running` says whether the router's tasks are, `registered` whether
    producers of this process reach it.

    A gateway that is away is no failure: the router queues.
    """

    async def check_runs() -> tuple[bool, object]:
        limit = "infinity" if run_process_limit is None else run_process_limit
        return True, {"active": (await router.counts())["active"], "max_children": limit}

    async def check_counts() -> tuple[bool, object]:
        return True, await router.counts()

    async def check_engine() -> tuple[bool, object]:
        available = False
        # Whoever asks for health waits 2 s in all, and a gateway that is silent takes its time.
        with anyio.move_on_after(ENGINE_WAIT_S):
            available = await router.engine_available()
        return True, {"available": available}

    def check_admissions() -> tuple[bool, object]:
        live = router.live_records()
        oldest = min((record.created_at_ms for record in live), default=None)
        age = None if oldest is None else clock.now_ms() - oldest
        return True, {"non_terminal": len(live), "oldest_ms": age}

    checks: dict[str, Callable[[], object | Awaitable[object]]] = {
        "supervisor": running,
        "run_orchestrator": registered,
        "run_supervisor": check_runs,
        "run_counts": check_counts,
        "engine_runtime": check_engine,
        "admissions": check_admissions,
    }
    return checks
