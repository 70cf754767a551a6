"""A gRPC server on a Unix socket or a TCP address, and the edge of every call it serves.

Both services use it: `running_server` owns the server, `Boundary` stands between a call and its
handler. It finds the peer, and turns core's errors into status codes, once, for all calls.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Never, TypeAlias, TypeVar

import anyio
import grpc
import grpc.aio

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.journal import Journal, Past
from lemon_core.logs import get_logger
from lemon_core.rpc.auth import (
    Authenticator,
    CertificateAuthenticator,
    Connection,
    Peer,
    SocketAuthenticator,
    TokenAuthenticator,
    TokenRow,
)
from lemon_core.rpc.limits import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS, ServingOptions
from lemon_core.rpc.listen import (
    Listen,
    ListenError,
    TcpListen,
    UnixListen,
    check_tcp,
    check_unix,
    parse_listen,
)
from lemon_core.rpc.status import PeerGone, Unauthenticated, refusal
from lemon_core.rpc.stream_server import Resumed, RunStreamServer, StreamRegistry
from lemon_core.rpc.tls import ServerTls

__all__ = [
    "Boundary",
    "CallContext",
    "Listen",
    "ListenError",
    "RunningServer",
    "ServingOptions",
    "TcpListen",
    "UnixListen",
    "parse_listen",
    "running_server",
]

log = get_logger(__name__)

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

STOP_GRACE_MS: Final = 1_000

CallContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]
"""What grpc gives every handler beside the request."""


class Boundary:
    """The edge of one server's calls."""

    def __init__(self, authenticator: Authenticator, clock: Clock, options: ServingOptions) -> None:
        self._authenticator = authenticator
        self._clock, self._options = clock, options
        self._streams = StreamRegistry(options.max_concurrent_streams)

    def peer(self, context: CallContext) -> Peer:
        """Who calls; raises `Unauthenticated`."""
        return self._authenticator.peer(
            context.invocation_metadata() or (), partial(_connection, context)
        )

    async def answer(
        self,
        context: CallContext,
        handler: Callable[[_Request, Peer], Awaitable[_Response]],
        request: _Request,
    ) -> _Response:
        """The handler's answer; its `LemonError`s become a status with the error word."""
        try:
            return await handler(request, self.peer(context))
        except LemonError as exc:
            return await self._refuse(context, exc)
        except grpc.aio.AbortError:
            raise  # the handler has said already how the call ends
        except Exception as exc:  # one broken call must not take others along
            return await self._fail(context, exc)

    async def serve_stream(
        self,
        context: CallContext,
        controls: AsyncIterator[pb.SubscribeControl],
        journal: Journal,
        *,
        past: Past | None = None,
        allowed: Callable[[Peer, str], bool] | None = None,
        resumed: Callable[[Peer], Resumed] | None = None,
    ) -> None:
        """Serve one peer's stream of run events from `journal`.

        `past` answers for runs that the journal does not hold; `allowed(peer, run_id)` says which
        runs the peer may see (default: all); `resumed(peer)` is told where it goes on.
        """
        try:
            peer = self.peer(context)
            with journal.follower() as follower:
                stream = RunStreamServer(
                    context,
                    follower,
                    past=past,
                    allowed=lambda run_id: allowed is None or allowed(peer, run_id),
                    clock=self._clock,
                    heartbeat_ms=self._options.heartbeat_ms,
                    max_message_bytes=self._options.max_message_bytes,
                    resumed=None if resumed is None else resumed(peer),
                )
                await self._streams.serve(stream, controls)
        except PeerGone:
            return
        except LemonError as exc:
            await self._refuse(context, exc)
        except Exception as exc:  # as in `answer`
            await self._fail(context, exc)

    def open_streams(self) -> int:
        """How many streams of run events are open."""
        return len(self._streams)

    def stop_streams(self) -> None:
        """Let every stream send what is ready and close."""
        self._streams.stop()

    async def _refuse(self, context: CallContext, error: LemonError) -> Never:
        status, text, trailing = refusal(error)
        if status is grpc.StatusCode.INTERNAL:
            log.error("rpc.failed", error=error.code)
        await context.abort(status, text, trailing)

    async def _fail(self, context: CallContext, error: Exception) -> Never:
        # Type and place only: the text of an error can hold what a user wrote.
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.error(
            "rpc.failed", error=type(error).__name__, place=f"{place.filename}:{place.lineno}"
        )
        await context.abort(grpc.StatusCode.INTERNAL, f"internal error ({type(error).__name__})")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that takes calls; `address` is the target for clients.

    `open_streams` counts the streams of run events that are open now.
    """

    address: str
    open_streams: Callable[[], int]


@asynccontextmanager
async def running_server(
    listen: Listen,
    *,
    register: Callable[[grpc.aio.Server, Boundary], None],
    services: Sequence[str],
    clock: Clock,
    options: ServingOptions | None = None,
    tokens: Sequence[TokenRow] = (),
    tls: ServerTls | None = None,
) -> AsyncIterator[RunningServer]:
    """Serve what `register` adds, with health and reflection for the full names in `services`.

    A Unix path must be free (`StateLock.claim_socket` makes it so). At the end, streams send what
    is ready, then the server stops within a second. Raises `ListenError`, `SocketInUse`,
    `SocketPathTooLong` and `StateDirUnusable`.
    """
    # Neither package carries types.
    from grpc_health.v1 import (  # type: ignore[import-untyped]
        health,
        health_pb2,
        health_pb2_grpc,
    )
    from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

    options = options or ServingOptions()
    authenticator = _authenticator(listen, tokens, tls)
    # Without a token in it, a call has been proven by its connection, or not got this far.
    by_token = isinstance(authenticator, TokenAuthenticator)
    interceptors = [_EveryCall(authenticator)] if by_token else []
    server = grpc.aio.server(interceptors=interceptors, options=_server_options(options))
    boundary = Boundary(authenticator, clock, options)
    register(server, boundary)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    try:
        address = _bind(server, listen, tls)
        await server.start()
        for name in ("", *services):
            await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        yield RunningServer(address, boundary.open_streams)
    finally:
        with anyio.CancelScope(shield=True):
            await checks.enter_graceful_shutdown()
            boundary.stop_streams()
            await server.stop(STOP_GRACE_MS / 1000)


def _authenticator(
    listen: Listen, tokens: Sequence[TokenRow], tls: ServerTls | None
) -> Authenticator:
    if isinstance(listen, UnixListen):
        return SocketAuthenticator()
    by_name = tls is not None and tls.names_peers
    check_tcp(listen, authenticated=by_name or bool(tokens), encrypted=tls is not None)
    if by_name:
        return CertificateAuthenticator(tokens)
    try:
        return TokenAuthenticator(tokens)
    except ValueError as exc:
        raise ListenError(listen.target, str(exc)) from exc


def _connection(context: CallContext) -> Connection:
    return context.auth_context()


def _bind(server: grpc.aio.Server, listen: Listen, tls: ServerTls | None) -> str:
    if isinstance(listen, UnixListen):
        check_unix(listen)
    try:
        if tls is None or isinstance(listen, UnixListen):
            port = server.add_insecure_port(listen.target)
        else:
            port = server.add_secure_port(listen.target, _credentials(tls))
    except RuntimeError as exc:
        raise ListenError(listen.target, "the address cannot be used (is it taken?)") from exc
    if isinstance(listen, TcpListen):
        return TcpListen(listen.host, port).target
    # Nobody else could enter the folder before this line either.
    os.chmod(listen.path, 0o600)
    return f"unix:{listen.path}"


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.cert)],
        root_certificates=tls.client_ca,
        require_client_auth=tls.client_ca is not None,
    )


def _server_options(options: ServingOptions) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # Peers ping as often as this server does; the default would call that abuse.
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
        # By default a second server could share the port unseen.
        ("grpc.so_reuseport", 0),
    ]


class _EveryCall(grpc.aio.ServerInterceptor):
    """Refuses every call without a token, also those of health and reflection."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails],
            Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None],
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        try:
            self._authenticator.peer(handler_call_details.invocation_metadata or ())
        except Unauthenticated as exc:
            return _refusing(exc)
        return await continuation(handler_call_details)


def _refusing(error: LemonError) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(requests: object, context: CallContext) -> None:
        await context.abort(*refusal(error))

    # Of the four forms this one answers without waiting for a message of the peer.
    return grpc.stream_stream_rpc_method_handler(refuse)
