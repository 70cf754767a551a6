"""The router's health over HTTP and gRPC (specification lemon_router 10)."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from lemon_core.boot import BootError
from lemon_core.runs import RunRequest
from lemon_router.health import CUSTOM_CHECKS
from lemon_router.tests.forms import served

pytestmark = pytest.mark.anyio


async def get(url: str) -> tuple[int, Mapping[str, object]]:
    """Status and body; the endpoint closes after each answer."""
    import json

    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    async with await anyio.connect_tcp(name, int(port)) as stream:
        await stream.send(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        received = b""
        while True:
            try:
                received += await stream.receive()
            except anyio.EndOfStream:
                break
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.behaviour("lemon_router.42")
async def test_health_stays_well_with_the_gateway_away_and_shows_what_is_open() -> None:
    async with served() as s, s.client() as client:
        s.engine.is_available = False
        await client.submit_run(RunRequest(run_id="run_1", session_key="agent:default:main"))
        await client.submit_run(
            RunRequest(run_id="run_2", session_key="agent:default:main", prompt="hi")
        )
        with anyio.fail_after(5):
            for path in ("", "z"):
                status, body = await get(s.runtime.listening["router health"] + path)
                assert status == 200
                assert (body["app"], body["ok"]) == ("lemon_router", True)
            report = await client.health()
        checks = {check.name: check.detail for check in report.checks}
        assert list(checks) == [
            "supervisor",
            "run_orchestrator",
            "run_supervisor",
            "run_counts",
            "engine_runtime",
            "admissions",
        ]
        assert checks["engine_runtime"] == {"available": False}
        assert checks["run_supervisor"] == {"active": 1, "max_children": 500}
        admissions = checks["admissions"]
        assert admissions is not None
        assert admissions["non_terminal"] == 1
        await client.abort_run("run_2")


@pytest.mark.behaviour("lemon_router.42")
async def test_a_failing_check_of_somebody_is_503() -> None:
    async with served() as s:
        s.runtime.capabilities.contribute(CUSTOM_CHECKS, ("disk", lambda: (False, {"free": 0})))
        with anyio.fail_after(5):
            status, body = await get(s.runtime.listening["router health"])
            assert (status, body["ok"]) == (503, False)
            assert (await get(s.runtime.listening["router health"] + "/x"))[0] == 404


async def test_a_taken_port_stops_the_start_and_names_its_key() -> None:
    async with served() as s:
        port = int(s.runtime.listening["router health"].split(":")[2].removesuffix("/health"))
        with pytest.raises(BootError, match=r"set health_port in \[router\] to a free port"):
            async with served(health_port=port):
                pass
        async with served(health_port=port, health_enabled=False) as other:
            assert "router health" not in other.runtime.listening


async def test_several_gateways_need_one_store() -> None:
    targets = ["127.0.0.1:1", "127.0.0.1:2"]
    with pytest.raises(BootError, match="names 2 gateways, which need one store"):
        async with served(engine_runtime="grpc", engine_targets=targets):
            pass
