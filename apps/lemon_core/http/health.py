"""Health of a server's app: the checks, their report, and the HTTP endpoint that shows it.

One form for every app that has a health port; what is checked is the app's own business.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from lemon_core.bridges import HealthCheck, HealthReport
from lemon_core.clock import Clock
from lemon_core.http.listen import listen
from lemon_core.http.metrics import CONTENT_TYPE
from lemon_core.logs import get_logger

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse

CHECK_TIMEOUT_MS = 2_000

log = get_logger("lemon_core.http.health")


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


def health_app(report: Reporter, metrics: Callable[[], str] | None = None) -> Starlette:
    """The endpoint: `GET /health` and `/healthz`; 200 when all is well, else 503; 404 elsewhere.

    `metrics` gives the page at `GET /metrics`; without it there is none.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def health(_: Request) -> JSONResponse:
        current = await report()
        return JSONResponse(report_body(current), status_code=200 if current.ok else 503)

    async def numbers(_: Request) -> Response:
        page = "" if metrics is None else metrics()
        return Response(page, headers={"content-type": CONTENT_TYPE})

    async def not_found(_: Request, __: Exception) -> JSONResponse:
        return JSONResponse({"error": "Not found"}, status_code=404)

    routes = [Route(path, health, methods=["GET"]) for path in ("/health", "/healthz")]
    if metrics is not None:
        routes.append(Route("/metrics", numbers, methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={404: not_found})


@asynccontextmanager
async def serving_health(
    report: Reporter,
    host: str,
    port: int,
    *,
    key: str,
    metrics: Callable[[], str] | None = None,
) -> AsyncIterator[int]:
    """The endpoint on `host`; yields the port (`port` 0 lets the system choose).

    Raises `PortUnusable`, which tells that `key` of the configuration sets the port.
    """
    import uvicorn  # only a server has this endpoint

    from lemon_core.http.server import GRACE_S, serving

    config = uvicorn.Config(
        health_app(report, metrics),
        log_config=None,
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        # The date is renewed by a loop that this server does not run.
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    async with serving(config, listen(host, port, key)) as opened:
        yield opened
