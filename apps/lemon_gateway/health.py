"""What the gateway checks of itself; core's `http.health` asks, reports and serves it."""

from __future__ import annotations

from collections.abc import Callable

from lemon_core.http.health import Check
from lemon_gateway.engine_lock import EngineLock
from lemon_gateway.executor import ConfiguredExecutor
from lemon_gateway.scheduler import Scheduler

APP = "lemon_gateway"
CUSTOM_CHECKS = "gateway_health_checks"
PORT_KEY = "health_port in [gateway]"


def gateway_checks(
    scheduler: Scheduler,
    executor: ConfiguredExecutor,
    lock: EngineLock,
    active: Callable[[], int],
) -> dict[str, Check]:
    """The built-in checks; `active` counts the runs that are queued or live."""

    def check_scheduler() -> tuple[bool, object]:
        counts = scheduler.counts()
        detail = {"in_flight": counts.in_flight, "waitq": counts.waitq, "max": counts.max}
        return scheduler.running, detail

    def check_executor() -> tuple[bool, object]:
        return executor.validate() is None, {"module": executor.path}

    def check_lock() -> tuple[bool, object]:
        held, waiting = lock.counts()
        return True, {"held": held, "waiting": waiting}

    return {
        "supervisor": lambda: scheduler.running,
        "scheduler": check_scheduler,
        "executor": check_executor,
        "run_supervisor": lambda: (True, {"active": active()}),
        "engine_lock": check_lock,
    }
