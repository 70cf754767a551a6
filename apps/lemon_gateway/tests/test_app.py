"""The component in a real runtime: what it opens, and what it leaves behind."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import anyio
import pytest

from lemon_core.boot import BootError, boot
from lemon_core.clock import SystemClock
from lemon_core.events import Completion
from lemon_core.profiles import Profile
from lemon_core.store import RunStore, StoreSettings, open_store
from lemon_core.testing import scrubbed_environ, temp_home
from lemon_gateway.tests.booting import HERE, BootedExecutor, booted, profile
from lemon_gateway.tests.fakes import command
from lemon_gateway.tests.http_get import http_get


@pytest.mark.behaviour("lemon_gateway.37")
async def test_a_server_opens_health_and_a_private_socket_and_nothing_else() -> None:
    """Specification lemon_gateway 11, 12: health and rpc server, ingress is absent by default."""
    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths) as (runtime, gateway):
            assert set(gateway.addresses) == {"health", "rpc"}
            assert gateway.addresses["rpc"] == f"unix:{paths.gateway_socket}"
            assert stat.S_IMODE(paths.gateway_socket.stat().st_mode) == 0o600
            assert stat.S_IMODE(paths.run_dir.stat().st_mode) == 0o700
            assert runtime.lock.holder.sockets == (str(paths.gateway_socket),)
            port = int(gateway.addresses["health"].rsplit(":", 1)[1].split("/")[0])
            status, body = await http_get(port, "/health")
            assert status == 200
            checks = body["checks"]
            assert isinstance(checks, list)
            assert [check["name"] for check in checks] == [
                "supervisor",
                "scheduler",
                "executor",
                "run_supervisor",
                "engine_lock",
                "rpc_server",
            ]
        assert not paths.gateway_socket.exists()
        with pytest.raises(OSError, match="connect"):
            await http_get(port, "/health")


@pytest.mark.behaviour("lemon_gateway.37")
async def test_a_contributed_check_is_part_of_health() -> None:
    """Specification lemon_gateway 11: custom checks, 503 on failure or exception."""

    def broken() -> None:
        raise RuntimeError("secret text")

    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths) as (runtime, gateway):
            port = int(gateway.addresses["health"].rsplit(":", 1)[1].split("/")[0])
            for check in (("disk", lambda: False), broken):
                runtime.capabilities.contribute("gateway_health_checks", check)
                status, body = await http_get(port, "/health")
                assert status == 503
                assert body["ok"] is False
            assert "secret text" not in str(body)


async def test_a_one_shot_opens_no_port_and_no_socket() -> None:
    """DESIGN ruling 22: in-process runs open no health port and no socket."""
    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths, serve=False) as (_, gateway):
            assert gateway.addresses == {}
            assert not paths.gateway_socket.exists()
            await gateway.submit_execution(command("run_1", cwd="/tmp"))
            assert await gateway.available()


async def test_surfaces_can_be_switched_off() -> None:
    """Specification lemon_gateway 12: health_enabled, rpc.enabled."""
    section = {"health_enabled": False, "rpc": {"enabled": False}}
    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths, section) as (_, gateway):
            assert gateway.addresses == {}


@pytest.mark.behaviour("lemon_gateway.41")
async def test_a_stopping_runtime_ends_live_runs() -> None:
    """Specification lemon_gateway 12: end live runs as gateway_shutdown, 5 s in all."""
    ends: list[Completion] = []
    with temp_home() as paths, anyio.fail_after(5):
        async with booted(paths) as (_, gateway):
            await gateway.submit(
                command("run_1"), on_complete=lambda _, completed: ends.append(completed)
            )
            executor = gateway._executor.get()
            assert isinstance(executor, BootedExecutor)
            await (await executor.run("run_1")).say("so far")
        assert [(end.error, end.answer) for end in ends] == [("gateway_shutdown", "so far")]
        clock = SystemClock()
        async with open_store(StoreSettings("sqlite", paths.store_dir), clock) as store:
            record = await RunStore(store, clock).get("run_1")
            assert record is not None
            assert record.state == "finished"


@pytest.mark.behaviour("lemon_gateway.12")
@pytest.mark.parametrize(
    ("executor", "text"),
    [
        (None, "names no executor"),
        ("nonsense", "package.module:Class"),
        (f"{HERE}:Absent", "cannot be imported"),
        (f"{HERE}:profile", "lacks start_run, cancel, steer, redirect"),
    ],
)
async def test_an_executor_that_cannot_be_used_stops_the_start(
    executor: str | None, text: str
) -> None:
    """Specification lemon_gateway 2: it runs at application start, and start fails."""
    with temp_home() as paths, anyio.fail_after(10):
        with pytest.raises(BootError, match="lemon_gateway did not start") as caught:
            async with booted(paths, used=profile(executor)):
                pass
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not paths.gateway_socket.exists()


async def test_a_taken_health_port_stops_the_start_in_one_line() -> None:
    """Specification lemon_gateway 11: a port in use gives one clear line."""
    with (
        temp_home() as paths,
        anyio.fail_after(10),
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        port = taken.getsockname()[1]
        with pytest.raises(BootError) as caught:
            async with booted(paths, {"health_port": port}):
                pass
        assert str(caught.value) == (
            f"lemon_gateway did not start: cannot listen on 127.0.0.1:{port} (Address already in "
            "use): set health_port in [gateway] to a free port"
        )


async def test_the_socket_of_a_dead_server_is_replaced_and_that_of_a_live_one_is_not() -> None:
    """DESIGN ruling 22: only the holder of the state lock removes a stale socket."""
    with temp_home() as paths, anyio.fail_after(10):
        paths.run_dir.mkdir(parents=True, mode=0o700)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(paths.gateway_socket))
            server.listen()
            with pytest.raises(BootError, match="another server answers there"):
                async with booted(paths):
                    pass
        assert paths.gateway_socket.exists()
        async with booted(paths) as (_, gateway):
            assert gateway.addresses["rpc"] == f"unix:{paths.gateway_socket}"


async def test_a_token_without_its_secret_stops_the_start() -> None:
    """Specification lemon_gateway 5.4: the row names a stored secret."""
    rpc = {
        "enabled": True,
        "listen": "127.0.0.1:0",
        "tokens": [{"id": "router-1", "secret": "ROUTER_ONE"}],
    }
    with (
        temp_home() as paths,
        anyio.fail_after(10),
        pytest.raises(BootError, match="ROUTER_ONE"),
    ):
        async with booted(paths, {"rpc": rpc}):
            pass


async def test_the_facade_module_is_light(tmp_path: Path) -> None:
    """Notes of the app: starlette, uvicorn and grpc are imported by a server only."""
    import subprocess
    import sys

    code = (
        "import sys; import lemon_gateway.app, lemon_gateway; "
        "print([m for m in ('grpc', 'uvicorn', 'starlette') if m in sys.modules])"
    )
    done = await anyio.run_process(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, stderr=subprocess.PIPE
    )
    assert done.stdout.decode().strip() == "[]"


async def test_runs_leave_introspection_records() -> None:
    """Specification lemon_gateway 4, with core's own log."""
    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths, serve=False) as (_, gateway):
            await gateway.submit_execution(command("run_1"))
            executor = gateway._executor.get()
            assert isinstance(executor, BootedExecutor)
            await executor.run("run_1")
        async with boot(
            Profile("test"),
            cwd=paths.home,
            environ=scrubbed_environ(paths.home),
            paths=paths,
            serve=False,
        ) as again:
            found = await again.introspection.query()
    assert {entry.event_type for entry in found} == {
        "thread_started",
        "thread_message_dispatched",
        "scheduled_job_triggered",
        "scheduled_job_completed",
        "thread_terminated",
    }
    assert {(entry.engine, entry.provenance) for entry in found} == {("lemon", "direct")}
