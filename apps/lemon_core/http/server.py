"""A uvicorn server as a context manager: ready when entered, gone when left.

Only a server imports this, because uvicorn takes a while to import.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import uvicorn

from lemon_core.http.listen import port_of

GRACE_S = 1
"""How long requests may go on once the server is told to stop."""


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

    async def serve_to_the_end(self, listener: socket.socket) -> None:
        """Serve until told to stop, then until no request is left, cancelled or not."""
        # uvicorn gives each request a task of its own, which would outlive a cancelled server.
        with anyio.CancelScope(shield=True):
            await self.serve([listener])
            while self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks)


@asynccontextmanager
async def serving(config: uvicorn.Config, listener: socket.socket) -> AsyncIterator[int]:
    """Serve the app of `config` on `listener`, which is closed at the end; yields its port."""
    server, port = Server(config), port_of(listener)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve_to_the_end, listener)
        try:
            await server.ready.wait()
            yield port
        finally:
            server.stop.set()
