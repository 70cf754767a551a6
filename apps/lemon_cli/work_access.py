"""How the commands about work reach it: the running server, or for reading the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lemon_cli.errors import CliError
from lemon_core.cli.base import note, open_core
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_cli.stored_work import StoredWork
    from lemon_core.rpc.router_client import RouterClient


class NotRunning(CliError):
    """There is no server that could do it."""

    def __init__(self) -> None:
        super().__init__("Lemon is not running: start it with lemon start")


@asynccontextmanager
async def open_server(context: CommandContext) -> AsyncIterator[RouterClient]:
    """The router of the running server; raises `NotRunning`."""
    from lemon_core import logs
    from lemon_core.clock import SystemClock
    from lemon_core.rpc.router_client import RouterClient
    from lemon_core.rpc.running import running

    logs.configure("off")
    clock = SystemClock()
    if await running(context.paths, clock) is None:
        raise NotRunning
    async with RouterClient(f"unix:{context.paths.router_socket}", clock=clock) as client:
        yield client


@asynccontextmanager
async def open_reader(context: CommandContext) -> AsyncIterator[RouterClient | StoredWork]:
    """What answers questions about work: the server, else the store, as a line on stderr says."""
    try:
        async with open_server(context) as client:
            yield client
            return
    except NotRunning:
        pass
    from lemon_cli.stored_work import StoredWork
    from lemon_core.store import RunStore, SessionSettingsStore

    note("Lemon is not running: this is what the store holds")
    async with open_core(context) as core:
        yield StoredWork(
            RunStore(core.store, core.clock), SessionSettingsStore(core.store, core.clock)
        )
