"""From an `rpc` section of the configuration to what a server needs: address, limits, tokens."""

from __future__ import annotations

from dataclasses import dataclass

from lemon_core.config.rpc import RpcSection
from lemon_core.errors import LemonError
from lemon_core.rpc.auth import TokenRow
from lemon_core.rpc.listen import Listen, UnixListen, parse_listen
from lemon_core.rpc.serving import ServingOptions
from lemon_core.runtime import Runtime
from lemon_core.secret_errors import SecretsError


class SecretMissing(LemonError):
    """A token's secret is not there or not readable: nobody could prove to be its owner."""

    code = "secret_missing"

    def __init__(
        self, section: str, token_id: str, secret: str, cause: SecretsError | None = None
    ) -> None:
        unset = cause is None or cause.code == "not_found"
        why = "which is not set" if unset else f"which is of no use ({cause})"
        super().__init__(
            f"{section}.tokens: token {token_id!r} needs the secret {secret!r}, {why}: "
            f"put {secret}=... into ~/.lemon/.env or the environment"
        )
        self.token_id, self.secret = token_id, secret


@dataclass(frozen=True, slots=True)
class Surface:
    """Where a server listens, within which limits, and whom it lets in."""

    listen: Listen
    options: ServingOptions
    tokens: tuple[TokenRow, ...]


async def claim_surface(runtime: Runtime, section: RpcSection, name: str) -> Surface:
    """The surface that `section` (called `name` in messages) describes; a Unix socket is made free.

    Raises `ListenError`, `SocketInUse`, `SocketPathTooLong`, `SecretMissing` and `StoreError`.
    """
    listen = parse_listen(section.listen, runtime.paths)
    if isinstance(listen, UnixListen):
        runtime.lock.claim_socket(listen.path)
    options = ServingOptions(
        max_message_bytes=section.max_message_bytes,
        max_concurrent_streams=section.max_concurrent_streams,
        heartbeat_ms=section.heartbeat_ms,
    )
    tokens = () if isinstance(listen, UnixListen) else await _tokens(runtime, section, name)
    return Surface(listen, options, tokens)


async def _tokens(runtime: Runtime, section: RpcSection, name: str) -> tuple[TokenRow, ...]:
    rows = []
    for row in section.tokens:
        try:
            secret = (await runtime.secrets.resolve(row.secret)).value.strip()
        except SecretsError as exc:
            raise SecretMissing(name, row.id, row.secret, exc) from exc
        if not secret:
            raise SecretMissing(name, row.id, row.secret)
        origins = None if row.origins is None else frozenset(row.origins)
        rows.append(TokenRow(row.id, secret, frozenset(row.scopes), origins, row.policy))
    return tuple(rows)
