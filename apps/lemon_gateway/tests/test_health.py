"""Health over real HTTP: status, body, custom checks, and a port that is taken."""

from __future__ import annotations

import socket

import anyio
import pytest

from lemon_core.bridges import HealthCheck, HealthReport
from lemon_core.clock import SystemClock
from lemon_core.http.health import HealthChecks, serving_health
from lemon_core.http.listen import PortUnusable
from lemon_gateway.health import PORT_KEY
from lemon_gateway.tests.fakes import running_gateway
from lemon_gateway.tests.http_get import Answer, http_get


async def serve(report: HealthReport) -> Answer:
    async def reporter() -> HealthReport:
        return report

    with anyio.fail_after(5):
        async with serving_health(reporter, "127.0.0.1", 0, key=PORT_KEY) as port:
            return await http_get(port, "/health")


OK = HealthReport("lemon_gateway", "2024-01-01T00:00:00.000+00:00", (HealthCheck("one", True),))
BAD = HealthReport(
    "lemon_gateway", "2024-01-01T00:00:00.000+00:00", (HealthCheck("one", False, error="no"),)
)


@pytest.mark.behaviour("lemon_gateway.37")
async def test_the_gateway_s_own_checks_over_both_paths() -> None:
    """Specification lemon_gateway 11: the built-in checks and the body of the answer."""
    with anyio.fail_after(5):
        async with (
            running_gateway() as gateway,
            serving_health(gateway.runtime.health, "127.0.0.1", 0, key=PORT_KEY) as port,
        ):
            for path in ("/health", "/healthz"):
                status, body = await http_get(port, path)
                assert status == 200
                checks = body.pop("checks")
                assert body == {
                    "ok": True,
                    "app": "lemon_gateway",
                    "timestamp": "2023-11-14T22:13:20.000+00:00",
                }
                assert checks == [
                    {"name": "supervisor", "ok": True, "duration_ms": 0, "detail": {}},
                    {
                        "name": "scheduler",
                        "ok": True,
                        "duration_ms": 0,
                        "detail": {"in_flight": 0, "waitq": 0, "max": 2},
                    },
                    {
                        "name": "executor",
                        "ok": True,
                        "duration_ms": 0,
                        "detail": {"module": "lemon_gateway.tests.fakes:GivenExecutor"},
                    },
                    {
                        "name": "run_supervisor",
                        "ok": True,
                        "duration_ms": 0,
                        "detail": {"active": 0},
                    },
                    {
                        "name": "engine_lock",
                        "ok": True,
                        "duration_ms": 0,
                        "detail": {"held": 0, "waiting": 0},
                    },
                ]


@pytest.mark.behaviour("lemon_gateway.37")
async def test_a_failed_check_is_503_with_its_error() -> None:
    """Specification lemon_gateway 11: 200 if all ok, else 503."""
    assert (await serve(OK))[0] == 200
    status, body = await serve(BAD)
    assert status == 503
    assert body["ok"] is False
    assert body["checks"] == [{"name": "one", "ok": False, "duration_ms": 0.0, "error": "no"}]


@pytest.mark.behaviour("lemon_gateway.37")
async def test_other_paths_are_404() -> None:
    """Specification lemon_gateway 11: other paths 404."""

    async def reporter() -> HealthReport:
        return OK

    with anyio.fail_after(5):
        async with serving_health(reporter, "127.0.0.1", 0, key=PORT_KEY) as port:
            for path in ("/", "/healthy", "/health/x"):
                assert await http_get(port, path) == (404, {"error": "Not found"})
            assert (await http_get(port, "/health", "POST"))[0] == 405


async def slow() -> None:
    await anyio.sleep_forever()


def secretive() -> None:
    raise RuntimeError("password is hunter2")


@pytest.mark.behaviour("lemon_gateway.37")
async def test_custom_checks_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Specification lemon_gateway 11: None/True ok, (ok, detail), everything else failed."""
    monkeypatch.setattr("lemon_core.http.health.CHECK_TIMEOUT_MS", 20)

    async def later() -> tuple[bool, dict[str, object]]:
        return True, {"queue": 3}

    custom: list[object] = [
        lambda: None,
        ("named", lambda: True),
        later,
        lambda: (False, {"why": "full"}),
        lambda: False,
        lambda: "fine",
        secretive,
        slow,
        "not callable",
    ]
    with anyio.fail_after(5):
        checks = await HealthChecks(SystemClock(), {}, lambda: custom).run()
    assert [(check.name, check.ok, check.error) for check in checks] == [
        ("custom_0", True, None),
        ("named", True, None),
        ("custom_2", True, None),
        ("custom_3", False, "check failed"),
        ("custom_4", False, "check failed"),
        ("custom_5", False, "check failed"),
        ("custom_6", False, "check raised RuntimeError"),
        ("custom_7", False, "no answer within 20 ms"),
        ("custom_8", False, "check raised TypeError"),
    ]
    assert checks[2].detail == {"queue": 3}


async def test_a_taken_port_is_one_line_that_names_port_and_key() -> None:
    """Specification lemon_gateway 11: health_port."""

    async def reporter() -> HealthReport:
        return OK

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortUnusable) as caught:
            async with serving_health(reporter, "127.0.0.1", port, key=PORT_KEY):
                pass
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port} (Address already in use): set health_port in "
        "[gateway] to a free port"
    )


async def test_the_port_is_free_again_afterwards() -> None:
    """Specification lemon_gateway 12: stop in reverse, leaving nothing behind."""

    async def reporter() -> HealthReport:
        return OK

    with anyio.fail_after(5):
        async with serving_health(reporter, "127.0.0.1", 0, key=PORT_KEY) as port:
            assert (await http_get(port, "/health"))[0] == 200
        async with serving_health(reporter, "127.0.0.1", port, key=PORT_KEY) as again:
            assert again == port
            assert (await http_get(port, "/health"))[0] == 200
