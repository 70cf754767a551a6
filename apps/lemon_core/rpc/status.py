"""How core's errors travel: a status code, the message, and the stable error word.

The word goes into the trailing metadata as `google.rpc.Status` with one `google.rpc.ErrorInfo`, the
form that every gRPC client library reads. Its handful of bytes are written here by hand, which
saves a dependency for two messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError

from lemon_core.approval_types import InvalidDecision
from lemon_core.bridges import ExecutionRejected, RunIdConflict, RunNotFound
from lemon_core.errors import LemonError
from lemon_core.execution_context import AuthorityError, ContextRejected
from lemon_core.router_views import SessionBusy, SessionNotFound
from lemon_core.rpc.fields import UnsupportedContract
from lemon_core.runs import InvalidCommand
from lemon_core.tool_policy import InvalidToolPolicy

DETAILS_KEY: Final = "grpc-status-details-bin"
DOMAIN: Final = "lemon"
_ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
_MESSAGE_LIMIT: Final = 1_000


class Unauthenticated(LemonError):
    """The call does not say, or does not prove, who makes it."""

    code = "unauthenticated"


class PermissionDenied(LemonError):
    """The peer is known and may not do this."""

    code = "permission_denied"


class SlowConsumer(LemonError):
    """The peer took nothing for a whole heartbeat while its events piled up."""

    code = "slow_consumer"

    def __init__(self) -> None:
        super().__init__("the subscriber is too slow: subscribe again from the last event")


class PeerGone(LemonError):
    """The call is over on the peer's side: nobody is left to be told anything."""

    code = "peer_gone"


class TooManyStreams(LemonError):
    """The server has as many streams as it may; one per peer is enough."""

    code = "too_many_streams"


STATUS: Final[tuple[tuple[type[LemonError], grpc.StatusCode], ...]] = (
    (UnsupportedContract, grpc.StatusCode.FAILED_PRECONDITION),
    (InvalidCommand, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidToolPolicy, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidDecision, grpc.StatusCode.INVALID_ARGUMENT),
    (ContextRejected, grpc.StatusCode.INVALID_ARGUMENT),
    (AuthorityError, grpc.StatusCode.INVALID_ARGUMENT),
    (RunIdConflict, grpc.StatusCode.ALREADY_EXISTS),
    (RunNotFound, grpc.StatusCode.NOT_FOUND),
    (SessionNotFound, grpc.StatusCode.NOT_FOUND),
    (SessionBusy, grpc.StatusCode.FAILED_PRECONDITION),
    (ExecutionRejected, grpc.StatusCode.UNAVAILABLE),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (SlowConsumer, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TooManyStreams, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (PeerGone, grpc.StatusCode.CANCELLED),
)


def status_of(error: LemonError) -> grpc.StatusCode:
    """The status an error travels as; INTERNAL for what is not a refusal."""
    for kind, status in STATUS:
        if isinstance(error, kind):
            return status
    return grpc.StatusCode.INTERNAL


def refusal(error: LemonError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Status, message and trailing metadata that tell a peer of `error`."""
    status, text = status_of(error), str(error)[:_MESSAGE_LIMIT]
    info = AnyMessage(
        type_url=_ERROR_INFO, value=_text_field(1, error.code) + _text_field(2, DOMAIN)
    )
    number, _ = status.value
    details = (
        bytes([0x08, number])
        + _text_field(2, text)
        + _bytes_field(3, info.SerializeToString(deterministic=True))
    )
    return status, text, ((DETAILS_KEY, details),)


def reason_of(error: grpc.aio.AioRpcError) -> str | None:
    """The error word that the server sent along, or None when the call failed on its way."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return _reason(value)
    return None


def _reason(details: bytes) -> str | None:
    try:
        for number, any_bytes in _fields(details):
            if number != 3:
                continue
            detail = AnyMessage.FromString(any_bytes)
            if detail.type_url == _ERROR_INFO:
                return dict(_fields(detail.value)).get(1, b"").decode() or None
    except (ValueError, IndexError, DecodeError):
        return None  # another server's details: the status itself still tells
    return None


def _text_field(number: int, text: str) -> bytes:
    return _bytes_field(number, text.encode(errors="replace"))


def _bytes_field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message; numbers in between are passed over."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
