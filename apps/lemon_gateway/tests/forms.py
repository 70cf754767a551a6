"""The forms in which callers reach a gateway, and a connection that a test can cut."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
from anyio.abc import ByteStream, SocketStream

from lemon_core.bridges import EngineRuntime
from lemon_core.bus import Bus
from lemon_core.clock import Clock, SystemClock
from lemon_core.events import Event
from lemon_core.rpc.auth import TokenRow
from lemon_core.rpc.engine_client import GrpcEngineRuntime
from lemon_core.rpc.serving import Listen, ServingOptions, TcpListen, UnixListen
from lemon_core.rpc.tls import ServerTls
from lemon_core.store import Store
from lemon_core.testing import socket_dir
from lemon_gateway.config import GatewaySettings
from lemon_gateway.rpc_server import serving_execution
from lemon_gateway.tests.fakes import Gateway, ScriptedExecutor, running_gateway

Form = Literal["in_process", "unix_socket", "tcp"]
FORMS: tuple[Form, ...] = ("in_process", "unix_socket", "tcp")
TOKENS = (TokenRow("router-1", "s3cret", frozenset({"runs"})),)


@dataclass
class Reached:
    """A gateway (`inside`) as a caller reaches it (`port`), and the caller's own bus."""

    port: EngineRuntime
    bus: Bus
    inside: Gateway
    address: str


@asynccontextmanager
async def reaching(
    form: Form,
    executor: ScriptedExecutor | None = None,
    *,
    settings: GatewaySettings | None = None,
    store: Store | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Reached]:
    """A gateway in one of its forms."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running_gateway(executor, settings=settings, store=store, clock=clock)
        )
        if form == "in_process":
            yield Reached(gateway.runtime, gateway.bus, gateway, "")
            return
        token = TOKENS[0].secret if form == "tcp" else None
        listen: Listen = TcpListen("127.0.0.1", 0)
        if form == "unix_socket":
            listen = UnixListen(stack.enter_context(socket_dir()) / "gateway.sock")
        address = await stack.enter_async_context(serving_at(gateway, listen))
        bus = Bus()
        client = GrpcEngineRuntime(address, bus=bus, clock=SystemClock(), token=token)
        await stack.enter_async_context(client)
        yield Reached(client, bus, gateway, address)


@asynccontextmanager
async def serving_at(
    gateway: Gateway,
    listen: Listen,
    tokens: Sequence[TokenRow] = TOKENS,
    options: ServingOptions | None = None,
    tls: ServerTls | None = None,
) -> AsyncIterator[str]:
    """The gateway's ExecutionService; yields the address."""
    used = tuple(tokens) if isinstance(listen, TcpListen) else ()
    async with serving_execution(
        gateway.runtime, listen, gateway.clock, options or ServingOptions(), used, tls
    ) as server:
        yield server.address


async def events_of(port: EngineRuntime, run_id: str, after_seq: int = 0) -> list[Event]:
    """The events of a run to its end, as a caller of the port gets them."""
    async with aclosing(port.subscribe(run_id, after_seq)) as items:
        return [item async for item in items if isinstance(item, Event)]


class Wire:
    """A Unix socket that passes bytes on to another one until the test cuts it."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self.target = path, target
        self.connections = 0
        self._open: set[ByteStream] = set()

    async def cut(self) -> None:
        """Close every connection in the middle of whatever it was doing."""
        for stream in tuple(self._open):
            await anyio.aclose_forcefully(stream)

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass connections on until cancelled."""
        async with await anyio.create_unix_listener(self.path) as listener:
            task_status.started()
            await listener.serve(self._pass_on)

    async def _pass_on(self, near: SocketStream) -> None:
        self.connections += 1
        try:
            async with near, await anyio.connect_unix(self.target) as far:
                self._open |= {near, far}
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._pump, near, far, tasks.cancel_scope)
                    tasks.start_soon(self._pump, far, near, tasks.cancel_scope)
                self._open -= {near, far}
        except OSError:
            pass  # the server is not there: the caller sees a closed connection

    async def _pump(self, source: ByteStream, sink: ByteStream, scope: anyio.CancelScope) -> None:
        try:
            async for data in source:
                await sink.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # cut
        scope.cancel()


@asynccontextmanager
async def wired(gateway: Gateway) -> AsyncIterator[tuple[GrpcEngineRuntime, Bus, Wire]]:
    """A client that reaches the gateway over a wire that can be cut."""
    with socket_dir() as folder:
        wire = Wire(folder / "wire.sock", folder / "gateway.sock")
        async with serving_at(gateway, UnixListen(wire.target)), client_of(wire) as (client, bus):
            yield client, bus, wire


@asynccontextmanager
async def client_of(wire: Wire) -> AsyncIterator[tuple[GrpcEngineRuntime, Bus]]:
    """A client at the near end of `wire`."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(wire.serve)
        bus = Bus()
        target = UnixListen(wire.path)
        async with GrpcEngineRuntime(target, bus=bus, clock=SystemClock()) as client:
            yield client, bus
        tasks.cancel_scope.cancel()
