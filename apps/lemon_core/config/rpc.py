"""The `rpc` section of a gRPC surface and the tokens that open it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from lemon_core.config.fields import NotNegative, Positive, Section, Text, Texts
from lemon_core.config.listen import Address, ListenText, UnixAddress, parse_address
from lemon_core.tool_policy import ToolPolicy

Auth = Literal["none", "token", "mtls"]
Scope = Literal["runs", "admin"]

_MIB = 1_048_576


def _policy(value: object) -> object:
    return ToolPolicy.parse({"profile": value}) if isinstance(value, str) else value


# A policy, or the name of a profile that is one.
Policy = Annotated[ToolPolicy, BeforeValidator(_policy)]


def _safe_mode() -> ToolPolicy:
    return ToolPolicy.of_profile("safe_mode")


class RpcToken(Section):
    """One row of `tokens`: who may call, for what, and with which policy at most."""

    id: Text
    # The name of a secret, never the secret; a peer with a certificate has none.
    secret: Text | None = None
    scopes: Annotated[tuple[Scope, ...], Field(strict=False)] = ("runs",)
    # None is any origin.
    origins: Texts | None = None
    policy: Policy = Field(default_factory=_safe_mode)


class RpcSection(Section):
    """Where a gRPC surface listens, whom it lets in, and how much it keeps for latecomers."""

    enabled: bool = False
    listen: ListenText
    # None: `none` on a Unix socket, `token` on TCP.
    auth: Auth | None = None
    tls_cert: Text | None = None
    tls_key: Text | None = None
    tls_client_ca: Text | None = None
    max_message_bytes: Positive = 16 * _MIB
    max_concurrent_streams: Positive = 256
    heartbeat_ms: Positive = 15_000
    journal_max_events: Positive = 10_000
    journal_max_bytes: Positive = 8 * _MIB
    journal_total_max_bytes: Positive = 64 * _MIB
    journal_retention_ms: NotNegative = 600_000
    # None is core's node name.
    node_id: Text | None = None
    tokens: Annotated[tuple[RpcToken, ...], Field(strict=False)] = ()

    @property
    def address(self) -> Address:
        """`listen`, taken apart."""
        return parse_address(self.listen)

    @property
    def effective_auth(self) -> Auth:
        """How callers prove who they are."""
        if self.auth is not None:
            return self.auth
        return "none" if isinstance(self.address, UnixAddress) else "token"

    def problems(self) -> list[tuple[str, str]]:
        """What does not fit together, as (key, message)."""
        found = [*self._unsafe(), *self._incomplete_tls()]
        if self.effective_auth != "mtls":
            for token in self.tokens:
                if token.secret is None:
                    found.append(("tokens", f"{token.id!r} needs a secret: only mtls does without"))
        ids = [token.id for token in self.tokens]
        for repeated in sorted({token_id for token_id in ids if ids.count(token_id) > 1}):
            found.append(("tokens", f"the id {repeated!r} is there more than once"))
        return found

    def _unsafe(self) -> list[tuple[str, str]]:
        address, auth = self.address, self.effective_auth
        if isinstance(address, UnixAddress):
            return []
        if auth == "none":
            return [("auth", "none is for Unix sockets; on TCP use token or mtls")]
        found = []
        if not address.is_loopback and not (self.tls_cert and self.tls_key):
            found.append(("listen", f"{address} is not loopback: set tls_cert and tls_key"))
        if auth == "token" and not self.tokens:
            found.append(("tokens", "nobody could call: add a row with id and secret"))
        return found

    def _incomplete_tls(self) -> list[tuple[str, str]]:
        found = []
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            found.append((missing, "tls_cert and tls_key belong together"))
        if self.auth == "mtls" and not (self.tls_client_ca and self.tls_cert and self.tls_key):
            found.append(("auth", "mtls needs tls_cert, tls_key and tls_client_ca"))
        return found


class GatewayRpc(RpcSection):
    """`[gateway.rpc]`: the ExecutionService."""

    listen: ListenText = "unix:~/.lemon/run/gateway.sock"


class RouterRpc(RpcSection):
    """`[router.rpc]`: the RouterService."""

    listen: ListenText = "unix:~/.lemon/run/router.sock"
