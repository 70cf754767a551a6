"""What every client has: a channel, a stream shared by all readers, and one way to make a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

import anyio
import grpc.aio

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.bridges import HealthReport
from lemon_core.clock import Clock
from lemon_core.rpc.channel import (
    CALL_TIMEOUT_S,
    HEALTH_TIMEOUT_S,
    RETRY_BASE_MS,
    RETRY_MAX_MS,
    PeerUnavailable,
    error_of,
    metadata_for,
    open_channel,
)
from lemon_core.rpc.listen import Listen
from lemon_core.rpc.snapshots import health_from_message
from lemon_core.rpc.stream_client import RunStreams, StreamCall
from lemon_core.rpc.tls import ClientTls
from lemon_core.single_errors import single_errors
from lemon_core.util import capped_backoff

ATTEMPTS: Final = 3
"""Sends of one idempotent call whose outcome is unknown, before the caller is told."""

_Request = TypeVar("_Request", contravariant=True)
_Response = TypeVar("_Response", covariant=True)


class UnaryCall(Protocol[_Request, _Response]):
    """A method of a stub."""

    def __call__(
        self,
        request: _Request,
        /,
        *,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str | bytes], ...] | None = None,
    ) -> Awaitable[_Response]:
        """Make the call; raises `AioRpcError`."""


class RpcClient(ABC):
    """Base of the clients; an async context manager that owns its channel and its tasks."""

    def __init__(
        self,
        target: str | Listen,
        *,
        clock: Clock,
        token: str | None,
        tls: ClientTls | None = None,
        on_connected: Callable[[HealthReport], None] | None = None,
        lost_after_ms: int | None = None,
    ) -> None:
        self._clock = clock
        self._channel: grpc.aio.Channel = open_channel(target, tls)
        self._metadata = metadata_for(token)
        self._streams = RunStreams(
            self._open_stream,
            self.health,
            clock,
            on_connected=on_connected,
            lost_after_ms=lost_after_ms,
        )
        self._life: AbstractAsyncContextManager[None] = self._lifetime()

    async def __aenter__(self) -> Self:
        await self._life.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> bool | None:
        return await self._life.__aexit__(kind, error, place)

    @asynccontextmanager
    async def _lifetime(self) -> AsyncIterator[None]:
        try:
            with single_errors():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._streams.serve)
                    try:
                        yield
                    finally:
                        tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._channel.close()

    @abstractmethod
    def _open_stream(self) -> StreamCall:
        """The service's call that streams run events."""

    @abstractmethod
    def _health_call(self) -> UnaryCall[pb.GetHealthRequest, pb.HealthReport]:
        """The service's call that reports its health."""

    async def health(self) -> HealthReport:
        """The server's report; raises `PeerUnavailable` when it does not answer."""
        message = await self._call(
            self._health_call(), pb.GetHealthRequest(), timeout_s=HEALTH_TIMEOUT_S, attempts=1
        )
        return health_from_message(message)

    async def _call(
        self,
        method: UnaryCall[_Request, _Response],
        request: _Request,
        *,
        run_id: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        attempts: int = ATTEMPTS,
    ) -> _Response:
        """The answer to an idempotent call; an unknown outcome is settled by sending it again.

        Raises `PeerUnavailable` when the outcome stays unknown, else core's error for the refusal.
        """
        for attempt in range(attempts):
            try:
                return await method(request, timeout=timeout_s, metadata=self._metadata)
            except grpc.aio.AioRpcError as exc:
                error = error_of(exc, run_id)
                if attempt == attempts - 1 or not isinstance(error, PeerUnavailable):
                    raise error from exc
            await self._clock.sleep(capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS))
        raise AssertionError("the last attempt returns or raises")
