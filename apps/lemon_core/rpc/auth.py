"""Who calls: the operator on a Unix socket, the owner of a token or of a certificate on TCP.

The file mode of the socket (0600, in a 0700 folder) is the proof on a Unix socket. On TCP every
call, also one from the same machine, shows a token, or comes over a connection whose certificate an
accepted authority signed. A peer's name is always the token's id or the certificate's name, never
one that the peer gives itself.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, Protocol

from lemon_core.rpc.status import Unauthenticated
from lemon_core.tool_policy import ToolPolicy

Scope = Literal["runs", "admin"]
Metadata = Iterable[tuple[str, str | bytes]]
Connection = Mapping[str, Iterable[bytes]]
"""What gRPC knows of the connection (`auth_context`), certificate fields included."""
AskConnection = Callable[[], Connection]
"""Gives it; gRPC puts it together at each call, so only who needs it asks."""

ALL_SCOPES: Final[frozenset[Scope]] = frozenset({"runs", "admin"})
_BEARER: Final = "bearer "
_NO_CONNECTION: Final[Connection] = MappingProxyType({})


def _unknown() -> Connection:
    return _NO_CONNECTION


# The common name is the name; an authority that gives none has the first alternative one.
_NAME_FIELDS: Final = ("x509_common_name", "x509_subject_alternative_name")


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One accepted peer; `secret` is the text of its token, empty for one with a certificate.

    No `origins` means any, no `policy` safe mode.
    """

    id: str
    secret: str = field(default="", repr=False)
    scopes: frozenset[Scope] = frozenset({"runs"})
    origins: frozenset[str] | None = None
    policy: ToolPolicy | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A proven caller.

    `policy` narrows every run it submits (None: nothing to narrow, on the Unix socket only).
    `origins` are those its runs may have (None: the row names none).
    """

    id: str
    scopes: frozenset[Scope]
    origins: frozenset[str] | None
    policy: ToolPolicy | None
    local: bool

    @property
    def is_admin(self) -> bool:
        """True when it may see and steer what others submitted."""
        return "admin" in self.scopes

    def allows_origin(self, origin: str) -> bool:
        """True when its credentials do not exclude runs of `origin`."""
        return self.origins is None or origin in self.origins


OPERATOR: Final = Peer("operator", ALL_SCOPES, None, None, local=True)


class Authenticator(Protocol):
    """Finds the peer of a call."""

    def peer(self, metadata: Metadata, connection: AskConnection = _unknown) -> Peer:
        """The caller; raises `Unauthenticated`."""


class SocketAuthenticator:
    """On the Unix socket whoever could open it is the operator."""

    def peer(self, metadata: Metadata, connection: AskConnection = _unknown) -> Peer:
        """The operator."""
        return OPERATOR


class TokenAuthenticator:
    """On TCP the token in `authorization: Bearer <token>` says who calls."""

    def __init__(self, rows: Sequence[TokenRow]) -> None:
        if not rows or any(not row.secret or not row.id for row in rows):
            raise ValueError("a TCP listener needs tokens, each with an id and a secret")
        self._peers = [(row.secret.encode(), _peer_of(row)) for row in rows]

    def peer(self, metadata: Metadata, connection: AskConnection = _unknown) -> Peer:
        """The owner of the token; raises `Unauthenticated`."""
        given = _bearer(metadata)
        found: Peer | None = None
        for secret, peer in self._peers:
            # All rows are compared, each in constant time: the time tells nothing of any of them.
            if hmac.compare_digest(secret, given) and found is None:
                found = peer
        if found is None:
            raise Unauthenticated("a valid token is required (authorization: Bearer <token>)")
        return found


class CertificateAuthenticator:
    """On TCP with mutual TLS the certificate says who calls.

    The handshake has let in only what the configured authority signed. A row with the certificate's
    name as `id` says what its owner may do; without one it may submit runs in safe mode.
    """

    def __init__(self, rows: Sequence[TokenRow] = ()) -> None:
        self._peers = {row.id: _peer_of(row) for row in rows}

    def peer(self, metadata: Metadata, connection: AskConnection = _unknown) -> Peer:
        """The owner of the certificate; raises `Unauthenticated` for one without a name."""
        known = connection()
        for name in _NAME_FIELDS:
            for value in known.get(name, ()):
                if text := value.decode(errors="replace"):
                    return self._peers.get(text) or _peer_of(TokenRow(text))
        raise Unauthenticated("the certificate has no name: give it a common name")


def _peer_of(row: TokenRow) -> Peer:
    policy = row.policy or ToolPolicy.of_profile("safe_mode")
    return Peer(row.id, row.scopes, row.origins, policy, local=False)


def _bearer(metadata: Metadata) -> bytes:
    for key, value in metadata:
        if key == "authorization":
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            if text[: len(_BEARER)].lower() == _BEARER:
                return text[len(_BEARER) :].strip().encode()
    return b""
