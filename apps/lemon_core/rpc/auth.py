"""Who calls: the operator on a Unix socket, the owner of a token on TCP.

The file mode of the socket (0600, in a 0700 folder) is the proof on a Unix socket. On TCP every
call, also one from the same machine, shows a token. A peer's name is always the token's id, never a
name that the peer gives itself.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from lemon_core.rpc.status import Unauthenticated
from lemon_core.tool_policy import ToolPolicy

Scope = Literal["runs", "admin"]
Metadata = Iterable[tuple[str, str | bytes]]

ALL_SCOPES: Final[frozenset[Scope]] = frozenset({"runs", "admin"})
_BEARER: Final = "bearer "


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One accepted token; `secret` is its text. No `origins` means any, no `policy` safe mode."""

    id: str
    secret: str = field(repr=False)
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

    def peer(self, metadata: Metadata) -> Peer:
        """The caller; raises `Unauthenticated`."""


class SocketAuthenticator:
    """On the Unix socket whoever could open it is the operator."""

    def peer(self, metadata: Metadata) -> Peer:
        """The operator."""
        return OPERATOR


class TokenAuthenticator:
    """On TCP the token in `authorization: Bearer <token>` says who calls."""

    def __init__(self, rows: Sequence[TokenRow]) -> None:
        if not rows or any(not row.secret or not row.id for row in rows):
            raise ValueError("a TCP listener needs tokens, each with an id and a secret")
        self._peers = [(row.secret.encode(), _peer_of(row)) for row in rows]

    def peer(self, metadata: Metadata) -> Peer:
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
