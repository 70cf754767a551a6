"""From the configuration to what servers and clients need: addresses, limits, credentials."""

from __future__ import annotations

from dataclasses import dataclass

from lemon_core.config.rpc import RpcSection
from lemon_core.errors import LemonError
from lemon_core.rpc.auth import TokenRow
from lemon_core.rpc.listen import Listen, UnixListen, parse_listen
from lemon_core.rpc.serving import ServingOptions
from lemon_core.rpc.tls import ClientTls, ServerTls, load_client_tls, load_server_tls
from lemon_core.runtime import Runtime
from lemon_core.secret_errors import SecretsError


class SecretMissing(LemonError):
    """A token's secret is not there or not readable: nobody could prove to be its owner."""

    code = "secret_missing"

    def __init__(self, where: str, secret: str, cause: SecretsError | None = None) -> None:
        unset = cause is None or cause.code == "not_found"
        why = "which is not set" if unset else f"which is of no use ({cause})"
        super().__init__(
            f"{where} needs the secret {secret!r}, {why}: "
            f"put {secret}=... into ~/.lemon/.env or the environment"
        )
        self.secret = secret


@dataclass(frozen=True, slots=True)
class Surface:
    """Where a server listens, within which limits, and whom it lets in."""

    listen: Listen
    options: ServingOptions
    tokens: tuple[TokenRow, ...] = ()
    tls: ServerTls | None = None


async def claim_surface(runtime: Runtime, section: RpcSection, name: str) -> Surface:
    """The surface that `section` (called `name` in messages) describes; a Unix socket is made free.

    Raises `ListenError`, `SocketInUse`, `SocketPathTooLong`, `SecretMissing`, `TlsUnusable` and
    `StoreError`.
    """
    listen = parse_listen(section.listen, runtime.paths)
    options = ServingOptions(
        max_message_bytes=section.max_message_bytes,
        max_concurrent_streams=section.max_concurrent_streams,
        heartbeat_ms=section.heartbeat_ms,
    )
    if isinstance(listen, UnixListen):
        # The file's mode says who gets in, and nothing leaves the machine.
        runtime.lock.claim_socket(listen.path)
        return Surface(listen, options)
    tls = _tls(runtime, section, name)
    return Surface(listen, options, await _tokens(runtime, section, name), tls)


async def engine_access(runtime: Runtime) -> tuple[str | None, ClientTls | None]:
    """The token and the certificates with which `[router]` reaches its gateways.

    Raises `SecretMissing`, `TlsUnusable` and `StoreError`.
    """
    section = runtime.config.router
    tls = load_client_tls(
        section.engine_tls_ca,
        section.engine_tls_cert,
        section.engine_tls_key,
        runtime.paths,
        "router.engine_tls",
    )
    name = section.engine_token_secret
    token = None if name is None else await _secret(runtime, name, "router.engine_token_secret")
    return token, tls


def _tls(runtime: Runtime, section: RpcSection, name: str) -> ServerTls | None:
    if section.tls_cert is None or section.tls_key is None:
        return None
    return load_server_tls(
        section.tls_cert,
        section.tls_key,
        section.tls_client_ca,
        runtime.paths,
        name,
        names_peers=section.effective_auth == "mtls",
    )


async def _tokens(runtime: Runtime, section: RpcSection, name: str) -> tuple[TokenRow, ...]:
    rows = []
    for row in section.tokens:
        secret = ""
        if section.effective_auth == "token":
            where = f"{name}.tokens: token {row.id!r}"
            secret = await _secret(runtime, row.secret or "", where)
        origins = None if row.origins is None else frozenset(row.origins)
        rows.append(TokenRow(row.id, secret, frozenset(row.scopes), origins, row.policy))
    return tuple(rows)


async def _secret(runtime: Runtime, name: str, where: str) -> str:
    try:
        secret = (await runtime.secrets.resolve(name)).value.strip()
    except SecretsError as exc:
        raise SecretMissing(where, name, exc) from exc
    if not secret:
        raise SecretMissing(where, name)
    return secret
