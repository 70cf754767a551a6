"""Opening a channel to one of Lemon's servers, and what its failures mean."""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

from lemon_core.bridges import ExecutionRejected, RunIdConflict, RunNotFound
from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings
from lemon_core.router_views import SessionBusy, SessionNotFound
from lemon_core.rpc.limits import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS, ServingOptions
from lemon_core.rpc.listen import Listen, ListenError, UnixListen, parse_listen
from lemon_core.rpc.status import PermissionDenied, Unauthenticated, reason_of
from lemon_core.rpc.tls import ClientTls
from lemon_core.runs import InvalidCommand, MissingContext, MissingConversationKey

SUBMIT_TIMEOUT_S: Final = 15.0
CALL_TIMEOUT_S: Final = 5.0
HEALTH_TIMEOUT_S: Final = 2.0

RETRY_BASE_MS: Final = 100
RETRY_MAX_MS: Final = 2_000

UNKNOWN_OUTCOME: Final = frozenset(
    {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
)
"""Statuses of a call that may or may not have been carried out."""


class PeerUnavailable(LemonError):
    """The other side did not answer; whether it did what was asked is not known."""

    code = "peer_unavailable"


class CallFailed(LemonError):
    """The other side could not carry out the call; `status` is gRPC's word for it."""

    code = "call_failed"

    def __init__(self, status: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{status.name.lower()}: {details}")
        self.status = status


def open_channel(
    target: str | Listen,
    tls: ClientTls | None = None,
    max_message_bytes: int | None = None,
) -> grpc.aio.Channel:
    """A channel to `target` (`unix:/path`, `host:port`, or parsed); it connects when first used.

    TCP is encrypted where `tls` is given, and has to be beyond this machine: raises `ListenError`.
    """
    listen = parse_listen(target, PathSettings.resolve()) if isinstance(target, str) else target
    options = _channel_options(max_message_bytes or ServingOptions().max_message_bytes)
    if isinstance(listen, UnixListen) or (tls is None and listen.is_loopback):
        return grpc.aio.insecure_channel(listen.target, options=options)
    if tls is None:
        raise ListenError(
            listen.target,
            "tokens and prompts must not travel in the clear: say whom to trust (for a gateway, "
            "engine_tls_ca in [router]), or use 127.0.0.1 and a tunnel",
        )
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
    return grpc.aio.secure_channel(listen.target, credentials, options=options)


def _channel_options(limit: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.initial_reconnect_backoff_ms", RETRY_BASE_MS),
        ("grpc.min_reconnect_backoff_ms", RETRY_BASE_MS),
        ("grpc.max_reconnect_backoff_ms", RETRY_MAX_MS),
        # A channel of its own: another client's failures are no reason to wait here.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def metadata_for(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata that shows `token`."""
    return () if token is None else (("authorization", f"Bearer {token}"),)


def error_of(error: grpc.aio.AioRpcError, run_id: str) -> LemonError:
    """Core's error for a failed call about `run_id` (of calls about a session: its key), the same
    as in one process where there is one.

    `PeerUnavailable` stands for an unknown outcome, `CallFailed` for everything else.
    """
    reason, text = reason_of(error), error.details() or ""
    known = _by_reason(reason, text, run_id)
    if known is not None:
        return known
    match error.code():
        case status if status in UNKNOWN_OUTCOME:
            return PeerUnavailable(text or status.name.lower())
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.RESOURCE_EXHAUSTED:
            # The latter is a message over the size limit: no repetition makes it smaller.
            return InvalidCommand(text)
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(text)
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDenied(text)
        case status:
            return CallFailed(status, text)


def _by_reason(reason: str | None, text: str, run_id: str) -> LemonError | None:
    match reason:
        case MissingConversationKey.code:
            return MissingConversationKey(run_id)
        case MissingContext.code:
            return MissingContext(run_id)
        case RunIdConflict.code:
            return RunIdConflict(run_id)
        case RunNotFound.code:
            return RunNotFound(run_id)
        case SessionNotFound.code:
            return SessionNotFound(run_id)
        case SessionBusy.code:
            return SessionBusy(run_id)
        case ExecutionRejected.code:
            prefix = str(ExecutionRejected(""))
            return ExecutionRejected(text.removeprefix(prefix))
        case _:
            return None
