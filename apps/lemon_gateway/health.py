"""Health: the checks, their report, and the HTTP endpoint that shows it."""

from __future__ import annotations

import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from lemon_core.bridges import HealthCheck, HealthReport
from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_gateway.engine_lock import EngineLock
from lemon_gateway.errors import PortUnusable
from lemon_gateway.executor import ConfiguredExecutor
from lemon_gateway.scheduler import Scheduler

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse

APP = "lemon_gateway"
CUSTOM_CHECKS = "gateway_health_checks"
CHECK_TIMEOUT_MS = 2_000
PORT_KEY = "health_port in [gateway]"

log = get_logger("lemon_gateway.health")

Check = Callable[[], object]
"""Answers None or True (ok), False (failed) or `(ok, detail)`, also as an awaitable."""


class HealthChecks:
    """Named checks; `custom` is asked each time for callables or (name, callable) pairs."""

    def __init__(
        self,
        clock: Clock,
        builtin: Mapping[str, Check],
        custom: Callable[[], Iterable[object]] = tuple,
    ) -> None:
        self._clock, self._builtin, self._custom = clock, builtin, custom

    async def run(self) -> tuple[HealthCheck, ...]:
        """Every check's result. A check that fails, raises or takes over 2 s is not ok."""
        return tuple([await self._one(name, check) for name, check in self._all()])

    def _all(self) -> Iterator[tuple[str, object]]:
        yield from self._builtin.items()
        for number, item in enumerate(self._custom()):
            if isinstance(item, tuple) and len(item) == 2:
                yield str(item[0]), item[1]
            else:
                yield f"custom_{number}", item

    async def _one(self, name: str, check: object) -> HealthCheck:
        began_ms = self._clock.monotonic_ms()
        ok, detail, error = False, None, None
        try:
            with anyio.fail_after(CHECK_TIMEOUT_MS / 1000):
                ok, detail = _verdict(await _result(check))
            error = None if ok else "check failed"
        except TimeoutError:
            error = f"no answer within {CHECK_TIMEOUT_MS} ms"
        except Exception as exc:  # a custom check may raise anything; its text may hold a secret
            log.exception("health.check_raised", check=name)
            error = f"check raised {type(exc).__name__}"
        return HealthCheck(name, ok, self._clock.monotonic_ms() - began_ms, detail, error)


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


async def _result(check: object) -> object:
    if not callable(check):
        raise TypeError("a health check must be callable")
    result = check()
    return await result if inspect.isawaitable(result) else result


def _verdict(result: object) -> tuple[bool, Mapping[str, object] | None]:
    detail: object = None
    if isinstance(result, tuple) and len(result) == 2:
        result, detail = result
    if detail is not None and not isinstance(detail, Mapping):
        detail = {"detail": detail}
    return result is None or result is True, detail


def report_body(report: HealthReport) -> dict[str, object]:
    """The JSON that `GET /health` answers."""
    checks: list[dict[str, object]] = []
    for check in report.checks:
        row: dict[str, object] = {
            "name": check.name,
            "ok": check.ok,
            "duration_ms": check.duration_ms,
        }
        if check.error is not None:
            row["error"] = check.error
        else:
            row["detail"] = dict(check.detail or {})
        checks.append(row)
    return {
        "ok": report.ok,
        "app": report.app,
        "timestamp": report.timestamp,
        "checks": checks,
    }


def timestamp(now_ms: int) -> str:
    """A wall-clock time in ISO 8601, UTC."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")


Reporter = Callable[[], Awaitable[HealthReport]]


def health_app(report: Reporter) -> Starlette:
    """The endpoint: `GET /health` and `/healthz`; 200 when all is well, else 503; 404 elsewhere."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def health(_: Request) -> JSONResponse:
        current = await report()
        return JSONResponse(report_body(current), status_code=200 if current.ok else 503)

    async def not_found(_: Request, __: Exception) -> JSONResponse:
        return JSONResponse({"error": "Not found"}, status_code=404)

    routes = [Route(path, health, methods=["GET"]) for path in ("/health", "/healthz")]
    return Starlette(routes=routes, exception_handlers={404: not_found})


@asynccontextmanager
async def serving_health(report: Reporter, host: str, port: int) -> AsyncIterator[int]:
    """The endpoint on `host`; yields the port (`port` 0 lets the system choose).

    Raises `PortUnusable`.
    """
    import uvicorn  # only a server has this endpoint

    class Server(uvicorn.Server):
        """One that leaves signals to the process's owner and sleeps until it is told to stop."""

        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            self.ready, self.stop = anyio.Event(), anyio.Event()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def main_loop(self) -> None:
            self.ready.set()
            await self.stop.wait()

    listener = _listen(host, port)
    config = uvicorn.Config(
        health_app(report),
        log_config=None,
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        # The date is renewed by the loop that this server does not run.
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        await server.ready.wait()
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.stop.set()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that just ended leaves connections behind that would keep the port for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as exc:
        listener.close()
        raise PortUnusable(host, port, PORT_KEY, exc.strerror or str(exc)) from exc
    listener.setblocking(False)
    return listener
