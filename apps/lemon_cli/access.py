"""How a command reaches the router: over gRPC when Lemon runs, else in a runtime of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import anyio

from lemon_core.bridges import RouterBridge, SubmitResult
from lemon_core.bus import Bus, run_topic
from lemon_core.commands import CommandContext
from lemon_core.config import load_validated
from lemon_core.config.contributed import Contributed
from lemon_core.errors import LemonError
from lemon_core.events import Event
from lemon_core.runs import RunRequest
from lemon_core.state_lock import Holder, RuntimeBusy, read_holder

if TYPE_CHECKING:
    from lemon_core.rpc.router_client import RouterClient

LOCK_POLL_S = 0.1


class Refused(LemonError):
    """The router did not take the request."""

    code = "refused"

    def __init__(self, result: SubmitResult) -> None:
        super().__init__(result.reason or result.status)
        self.result = result


class RunAccess(Protocol):
    """Submits one run and follows it."""

    def run(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        """The run's events from its admission to its end; raises `Refused`."""

    async def abort(self, run_id: str, reason: str) -> None:
        """Ask the run to end."""


class LocalAccess:
    """The router of a runtime in this process."""

    def __init__(self, router: RouterBridge, bus: Bus) -> None:
        self._router, self._bus = router, bus

    async def run(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        """Subscribe first, so that no event is missed."""
        assert request.run_id is not None  # commands fix their run ids
        with self._bus.subscribe(run_topic(request.run_id)) as events:
            result = await self._router.submit_run(request)
            if result.status != "accepted":
                raise Refused(result)
            async for event in events:
                yield event

    async def abort(self, run_id: str, reason: str) -> None:
        """Ask the run to end."""
        await self._router.abort_run(run_id, reason)


class RemoteAccess:
    """The router of a running server."""

    def __init__(self, client: RouterClient) -> None:
        self._client = client

    async def run(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        """Submit, then watch from the first event; the stream resumes by itself."""
        assert request.run_id is not None  # commands fix their run ids
        result = await self._client.submit_run(request)
        if result.status != "accepted":
            raise Refused(result)
        async with aclosing(self._client.watch(request.run_id)) as events:
            async for event in events:
                yield event

    async def abort(self, run_id: str, reason: str) -> None:
        """Ask the run to end."""
        await self._client.abort_run(run_id, reason)


@asynccontextmanager
async def open_access(
    context: CommandContext, note: Callable[[str], None]
) -> AsyncIterator[RunAccess]:
    """The way to the router for the block.

    A state directory held by another command or by a server on its way out is waited for, which
    `note` is told once; bound the wait with a cancel scope.
    """
    waited = False
    async with AsyncExitStack() as stack:
        while True:
            access = await _try_open(context, stack, note)
            if access is not None:
                yield access
                return
            if not waited:
                waited = True
                holder = read_holder(context.paths.runtime_lock)
                note(f"waiting for {_who(holder)} to end")
            # The lock has no event to wait for; this is the schedule of looking at it again.
            await anyio.sleep(LOCK_POLL_S)


async def _try_open(
    context: CommandContext, stack: AsyncExitStack, note: Callable[[str], None]
) -> RunAccess | None:
    """Access now, or None while the state directory is held by something that does not answer."""
    holder = read_holder(context.paths.runtime_lock)
    if holder is not None:
        return await _try_remote(context, stack, note)
    from lemon_core.boot import boot  # not needed to talk to a server

    try:
        runtime = await stack.enter_async_context(
            boot(
                context.profile,
                cwd=context.cwd,
                environ=context.environ,
                paths=context.paths,
                serve=False,
            )
        )
    except RuntimeBusy:
        return None
    _warn(runtime.warnings, note)
    return LocalAccess(RouterBridge(runtime.capabilities), runtime.bus)


async def _try_remote(
    context: CommandContext, stack: AsyncExitStack, note: Callable[[str], None]
) -> RunAccess | None:
    from lemon_core.clock import SystemClock
    from lemon_core.rpc.router_client import RouterClient  # grpc is heavy
    from lemon_core.rpc.running import running

    clock = SystemClock()
    if await running(context.paths, clock=clock) is None:
        return None
    # A broken configuration stops the command here too, though a server would answer.
    loaded = load_validated(
        context.cwd,
        paths=context.paths,
        environ=context.environ,
        contributed=Contributed.of(context.profile),
    )
    _warn(loaded.warnings, note)
    target = f"unix:{context.paths.router_socket}"
    client = await stack.enter_async_context(RouterClient(target, clock=clock))
    return RemoteAccess(client)


def _warn(warnings: Iterable[str], note: Callable[[str], None]) -> None:
    for warning in warnings:
        note(f"warning: {warning}")


def _who(holder: Holder | None) -> str:
    if holder is None:
        return "another Lemon process"
    if holder.kind == "one_shot":
        return f"another one-shot command (process {holder.pid})"
    state = "is stopping" if holder.state == "draining" else "does not answer"
    return f"the server (process {holder.pid}), which {state},"
