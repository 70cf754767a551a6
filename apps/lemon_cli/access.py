"""How a command reaches the router: over gRPC when Lemon runs, else in a runtime of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

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
    from lemon_core.approvals import ExecApprovals
    from lemon_core.rpc.router_client import RouterClient
    from lemon_core.runtime import Runtime

LOCK_POLL_S = 0.1

A = TypeVar("A")


class Refused(LemonError):
    """The router did not take the request."""

    code = "refused"

    def __init__(self, result: SubmitResult) -> None:
        super().__init__(result.reason or result.status)
        self.result = result


class RunAccess(Protocol):
    """Submits one run and follows it.

    `answerable` tells that other commands can answer what the run asks.
    """

    answerable: bool

    def run(
        self, request: RunRequest, taken: Callable[[SubmitResult], None]
    ) -> AsyncGenerator[Event, None]:
        """The run's events from its admission to its end; raises `Refused`.

        `taken` is told how the router took the message, before the first event.
        """

    def follow(self, run_id: str) -> AsyncGenerator[Event, None]:
        """The events of a run that somebody else submitted, to its end."""

    async def answer(self, approval_id: str, decision: str) -> bool:
        """Answer what the run asks; False when the question is not open (any more)."""

    async def abort(self, run_id: str, reason: str) -> None:
        """Ask the run to end."""


class LocalAccess:
    """The router of a runtime in this process."""

    answerable = False

    def __init__(self, router: RouterBridge, bus: Bus, approvals: ExecApprovals) -> None:
        self._router, self._bus, self._approvals = router, bus, approvals

    async def run(
        self, request: RunRequest, taken: Callable[[SubmitResult], None]
    ) -> AsyncGenerator[Event, None]:
        """Subscribe first, so that no event is missed."""
        assert request.run_id is not None  # commands fix their run ids
        with self._bus.subscribe(run_topic(request.run_id)) as events:
            result = await self._router.submit_run(request)
            if result.status != "accepted":
                raise Refused(result)
            taken(result)
            async for event in events:
                yield event

    async def follow(self, run_id: str) -> AsyncGenerator[Event, None]:
        """What comes from now on."""
        with self._bus.subscribe(run_topic(run_id)) as events:
            async for event in events:
                yield event

    async def answer(self, approval_id: str, decision: str) -> bool:
        """Answer what the run asks."""
        return await self._approvals.resolve(approval_id, decision)

    async def abort(self, run_id: str, reason: str) -> None:
        """Ask the run to end."""
        await self._router.abort_run(run_id, reason)


class RemoteAccess:
    """The router of a running server."""

    answerable = True

    def __init__(self, client: RouterClient) -> None:
        self._client = client

    async def run(
        self, request: RunRequest, taken: Callable[[SubmitResult], None]
    ) -> AsyncGenerator[Event, None]:
        """Submit, then watch from the first event; the stream resumes by itself."""
        assert request.run_id is not None  # commands fix their run ids
        result = await self._client.submit_run(request)
        if result.status != "accepted":
            raise Refused(result)
        taken(result)
        async with aclosing(self.follow(request.run_id)) as events:
            async for event in events:
                yield event

    async def follow(self, run_id: str) -> AsyncGenerator[Event, None]:
        """The run from its first event."""
        async with aclosing(self._client.watch(run_id)) as events:
            async for event in events:
                yield event

    async def answer(self, approval_id: str, decision: str) -> bool:
        """Answer what the run asks."""
        return await self._client.resolve_approval(approval_id, decision)

    async def abort(self, run_id: str, reason: str) -> None:
        """Ask the run to end."""
        await self._client.abort_run(run_id, reason)


@asynccontextmanager
async def open_access(
    context: CommandContext, note: Callable[[str], None]
) -> AsyncIterator[RunAccess]:
    """The way to the router for one run; see `open_way`."""
    async with open_way(context, note, here=_local, there=RemoteAccess) as access:
        yield access


def _local(runtime: Runtime) -> RunAccess:
    return LocalAccess(RouterBridge(runtime.capabilities), runtime.bus, runtime.approvals)


@asynccontextmanager
async def open_way(
    context: CommandContext,
    note: Callable[[str], None],
    *,
    here: Callable[[Runtime], A],
    there: Callable[[RouterClient], A],
) -> AsyncIterator[A]:
    """What `there` makes of a running server, or `here` of a runtime booted for the block.

    A state directory held by another command or by a server on its way out is waited for, which
    `note` is told once; bound the wait with a cancel scope.
    """
    waited = False
    async with AsyncExitStack() as stack:
        while True:
            holder = read_holder(context.paths.runtime_lock)
            if holder is None:
                runtime = await _try_boot(context, stack, note)
                if runtime is not None:
                    yield here(runtime)
                    return
            else:
                client = await _try_remote(context, stack, note)
                if client is not None:
                    yield there(client)
                    return
            if not waited:
                waited = True
                holder = read_holder(context.paths.runtime_lock)
                note(f"waiting for {_who(holder)} to end{_way_out(holder)}")
            # The lock has no event to wait for; this is the schedule of looking at it again.
            await anyio.sleep(LOCK_POLL_S)


async def _try_boot(
    context: CommandContext, stack: AsyncExitStack, note: Callable[[str], None]
) -> Runtime | None:
    """A runtime of this process, or None when another process took the state directory."""
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
    return runtime


async def _try_remote(
    context: CommandContext, stack: AsyncExitStack, note: Callable[[str], None]
) -> RouterClient | None:
    """The running server, or None while what holds the state directory does not answer."""
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
    return await stack.enter_async_context(RouterClient(target, clock=clock))


def _warn(warnings: Iterable[str], note: Callable[[str], None]) -> None:
    for warning in warnings:
        note(f"warning: {warning}")


def _way_out(holder: Holder | None) -> str:
    """How not to wait the next time."""
    if holder is None or holder.kind != "one_shot":
        return ""
    return " (lemon daemon starts a server, with which they work side by side)"


def _who(holder: Holder | None) -> str:
    if holder is None:
        return "another Lemon process"
    if holder.kind == "one_shot":
        return f"another lemon run or lemon chat (process {holder.pid})"
    state = "is stopping" if holder.state == "draining" else "does not answer"
    return f"the server (process {holder.pid}), which {state},"
