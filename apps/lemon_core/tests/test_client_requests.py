"""Requests of a run to its editor (specification lemon_core 5.5)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from lemon_core.boot import boot
from lemon_core.client_requests import (
    AlreadyRegistered,
    ClientDown,
    ClientRequest,
    ClientRequestBridge,
    ClientTimeout,
    NoClient,
    client_requests,
)
from lemon_core.profiles import Profile
from lemon_core.testing import FakeClock, scrubbed_environ, temp_home

pytestmark = pytest.mark.anyio


async def echo(bridge: ClientRequestBridge, run_id: str, ready: anyio.Event) -> None:
    """An editor that answers with what it was asked."""
    async with bridge.register(run_id) as requests:
        ready.set()
        async for request in requests:
            request.answer((request.method, dict(request.params)))
            request.answer("a second answer")


async def test_each_request_gets_its_answer() -> None:
    bridge = ClientRequestBridge(FakeClock())
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for run_id in ("a", "b"):
                ready = anyio.Event()
                tasks.start_soon(echo, bridge, run_id, ready)
                await ready.wait()
            assert await bridge.request("a", "read", {"path": "x"}, 1_000) == (
                "read",
                {"path": "x"},
            )
            assert await bridge.request("b", "write", {}, 1_000) == ("write", {})
            tasks.cancel_scope.cancel()
    with pytest.raises(NoClient):
        await bridge.request("a", "read", {}, 1_000)


@pytest.mark.behaviour("lemon_core.14")
async def test_without_a_client_a_request_fails_at_once() -> None:
    clock = FakeClock()
    with anyio.fail_after(5), pytest.raises(NoClient, match="read for run a") as caught:
        await ClientRequestBridge(clock).request("a", "read", {}, 60_000)
    assert (caught.value.code, caught.value.run_id, clock.sleepers) == ("no_client", "a", 0)


@pytest.mark.behaviour("lemon_core.14")
async def test_a_handler_that_dies_fails_what_it_has_not_answered() -> None:
    clock = FakeClock()
    bridge = ClientRequestBridge(clock)
    taken: list[ClientRequest] = []

    async def handler(ready: anyio.Event) -> None:
        async with bridge.register("a") as requests:
            ready.set()
            taken.append(await anext(requests))
            await clock.wait_for_sleepers(2)  # the second one waits unread
            raise ConnectionError("editor gone")

    async def ask(method: str) -> None:
        with pytest.raises(ClientDown, match="went away"):
            await bridge.request("a", method, {}, 60_000)

    async def handle(ready: anyio.Event) -> None:
        with pytest.raises(ConnectionError):
            await handler(ready)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            ready = anyio.Event()
            tasks.start_soon(handle, ready)
            await ready.wait()
            tasks.start_soon(ask, "read")
            tasks.start_soon(ask, "write")
    taken[0].answer("too late")
    with pytest.raises(NoClient):
        await bridge.request("a", "read", {}, 60_000)


@pytest.mark.behaviour("lemon_core.14")
async def test_a_silent_client_times_out_and_the_next_request_is_answered() -> None:
    clock = FakeClock()
    bridge = ClientRequestBridge(clock)
    with anyio.fail_after(5):
        async with bridge.register("a") as requests, anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(ClientTimeout, match="within 250 ms"):
                    await bridge.request("a", "read", {}, 250)

            tasks.start_soon(ask)
            late = await anext(requests)
            await clock.wait_for_sleepers()
            await clock.advance(250)
            late.answer("too late")

            async def answer() -> None:
                (await anext(requests)).answer("yes")

            tasks.start_soon(answer)
            assert await bridge.request("a", "read", {}, 250) == "yes"


async def test_a_second_handler_of_a_run_is_refused() -> None:
    bridge = ClientRequestBridge(FakeClock())
    async with bridge.register("a"):
        with pytest.raises(AlreadyRegistered, match="run a"):
            async with bridge.register("a"):
                pytest.fail("two handlers")
    async with bridge.register("a"):
        pass


async def test_a_runtime_has_one_bridge() -> None:
    with temp_home() as paths:
        environ = scrubbed_environ(paths.home)
        async with boot(
            Profile("test"), cwd=Path(paths.home), environ=environ, paths=paths, serve=False
        ) as runtime:
            bridge = runtime.service(client_requests)
            assert runtime.service(client_requests) is bridge
