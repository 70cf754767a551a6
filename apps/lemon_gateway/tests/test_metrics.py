"""`GET /metrics`: what is counted, and that it stands beside `/health`."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.http.health import serving_health
from lemon_core.rpc.serving import UnixListen
from lemon_core.testing import FakeClock, socket_dir
from lemon_gateway.config import GatewaySettings
from lemon_gateway.tests.fakes import (
    NOW_MS,
    Gateway,
    ScriptedExecutor,
    command,
    running_gateway,
    settle,
)
from lemon_gateway.tests.http_get import http_get, http_get_text
from lemon_gateway.tests.peers import calling

P = "lemon_gateway_"


def numbers(gateway: Gateway) -> dict[str, float]:
    """Every sample of the page by its name with labels."""
    lines = [line for line in gateway.runtime.metrics.page().splitlines() if line[0] != "#"]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


async def test_runs_slots_locks_and_latencies_are_counted() -> None:
    """Specification lemon_gateway 11: Prometheus text, from the same telemetry as everything."""
    clock = FakeClock(NOW_MS)
    settings = GatewaySettings(
        node_id="n", max_concurrent_runs=2, engine_lock_timeout_ms=50, engine_lock_max_hold_ms=10
    )
    async with running_gateway(ScriptedExecutor(), clock=clock, settings=settings) as gateway:
        with anyio.fail_after(5), gateway.runtime.metrics.counting(gateway.telemetry):
            token = {"session_key": "agent:a:main"}
            await gateway.runtime.submit_execution(command("run_1", **token))  # type: ignore[arg-type]
            other = command("run_2", session_key="agent:a:main", conversation=("session", "other"))
            await gateway.runtime.submit_execution(other)
            await gateway.runtime.submit_execution(command("run_3", session_key="agent:c:main"))
            control = await gateway.executor.run("run_1")
            await settle()
            now = numbers(gateway)
            assert now[f"{P}runs_active"] == 3
            assert (now[f"{P}slots_in_flight"], now[f"{P}slots_max"]) == (2, 2)
            assert now[f"{P}slots_waiting"] == 1
            assert (now[f"{P}engine_locks_held"], now[f"{P}engine_locks_waiting"]) == (1, 1)
            await clock.advance(40)
            await control.say("a", "b")
            await settle()
            await clock.advance(10)
            assert (await gateway.end("run_2")).error is not None
            await control.complete()
            await gateway.end("run_1")
            await gateway.runtime.cancel_by_run_id("run_3")
            await gateway.end("run_3")
            await settle()
            now = numbers(gateway)
    assert now[f"{P}runs_active"] == now[f"{P}slots_in_flight"] == 0
    assert now[f"{P}runs_started_total"] == 2
    ended = {name: now[f'{P}runs_finished_total{{outcome="{name}"}}'] for name in OUTCOMES}
    assert ended == {"success": 1, "partial": 0, "failure": 1, "aborted": 1, "unknown": 0}
    assert now[f"{P}engine_lock_waits_total"] == now[f"{P}engine_lock_timeouts_total"] == 1
    assert now[f"{P}slot_wait_seconds_count"] == 3
    assert now[f'{P}slot_wait_seconds_bucket{{le="0.025"}}'] == 2
    assert now[f"{P}first_token_seconds_count"] == 1
    assert now[f'{P}first_token_seconds_bucket{{le="0.025"}}'] == 0
    assert now[f'{P}first_token_seconds_bucket{{le="0.05"}}'] == 1
    assert now[f"{P}first_token_seconds_sum"] == pytest.approx(0.04)


OUTCOMES = ("success", "partial", "failure", "aborted", "unknown")


async def test_streams_and_their_resumption_are_counted() -> None:
    """Specification lemon_gateway 4: `stream_resumed` and `stream_reset` with what was missed."""
    with socket_dir() as folder:
        async with calling(UnixListen(folder / "g.sock")) as (caller, gateway, _):
            with gateway.runtime.metrics.counting(gateway.telemetry):
                await caller.submit(command("run_1"), None)
                await (await gateway.executor.run("run_1")).complete("x")
                await gateway.end("run_1")
                await caller.frames("run_1", None)
                await caller.frames("run_1", None, after_seq=1, epoch=gateway.runtime.epoch)
                await caller.frames("run_1", None, after_seq=1, epoch="another")
            assert gateway.numbers("lemon.gateway.rpc.stream_resumed") == [
                {"count": 1, "missed": 2}
            ]
            assert gateway.numbers("lemon.gateway.rpc.stream_reset") == [{"count": 1, "missed": 3}]
            gateway.runtime.metrics.open_streams = lambda: 4
            now = numbers(gateway)
            assert now[f"{P}rpc_streams_open"] == 4
            assert now[f"{P}rpc_stream_resumed_total"] == now[f"{P}rpc_stream_reset_total"] == 1


async def test_the_page_stands_beside_health() -> None:
    """Specification lemon_gateway 11: `GET /metrics`, other paths 404."""
    async with running_gateway() as gateway:
        runtime = gateway.runtime
        page = runtime.metrics.page
        with anyio.fail_after(5):
            async with serving_health(
                runtime.health, "127.0.0.1", 0, key="x", metrics=page
            ) as port:
                status, kind, text = await http_get_text(port, "/metrics")
                assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
                assert text == page()
                assert (await http_get(port, "/health"))[0] == 200
                assert (await http_get(port, "/metrics/x"))[0] == 404
                assert (await http_get(port, "/metrics", "POST"))[0] == 405
            async with serving_health(runtime.health, "127.0.0.1", 0, key="x") as port:
                assert (await http_get(port, "/metrics"))[0] == 404
