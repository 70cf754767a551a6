"""The gateway's own ways in: which there are, where they listen, and when one may be public.

Each is a `Surface`, built by its module when the configuration switches it on, and served as a
transport like the contributed ones. Its port is opened when the gateway starts, so that a port that
is taken and an address that is open to everybody stop the start with one line.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lemon_core.config.gateway import GatewaySection
from lemon_core.http.listen import listen, port_of
from lemon_core.runtime import Runtime as CoreRuntime
from lemon_core.secret_errors import SecretsError
from lemon_core.secrets import Secrets
from lemon_gateway.errors import GatewayError
from lemon_gateway.ingress_limits import Limits

if TYPE_CHECKING:
    # starlette is for a server that has a way in.
    from starlette.routing import BaseRoute


class UnprotectedBind(GatewayError):
    """A way in would be open to everybody; it stops the start."""

    code = "unprotected_bind"

    def __init__(self, section: str, bind_key: str, bind: str, remedy: str) -> None:
        super().__init__(
            f"[{section}] {bind_key} = {bind!r} would take messages from anybody: {remedy}, or "
            f"set {bind_key} to 127.0.0.1"
        )
        self.section, self.bind = section, bind


@dataclass(frozen=True, slots=True)
class Surface:
    """One way in. `opened` gives its routes, for as long as it is entered.

    `unprotected` says what to set before it may listen beyond this machine; None: it may.
    """

    id: str
    section: str
    bind: str
    port: int
    opened: Callable[[], AbstractAsyncContextManager[Sequence[BaseRoute]]]
    unprotected: str | None
    bind_key: str = "bind"
    port_key: str = "port"
    limits: Limits = field(default_factory=Limits)

    def check_bind(self) -> None:
        """Raises `UnprotectedBind`."""
        if self.unprotected is not None and not is_loopback(self.bind):
            raise UnprotectedBind(self.section, self.bind_key, self.bind, self.unprotected)


class SurfaceTransport:
    """A surface as a transport, whose port is open before it is served."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._listener: socket.socket | None = None
        self._port = surface.port

    @property
    def id(self) -> str:
        """The surface's."""
        return self._surface.id

    @property
    def address(self) -> str:
        """Where it listens."""
        host = self._surface.bind
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    def listen(self) -> None:
        """Open the port; raises `UnprotectedBind` and `PortUnusable`."""
        surface = self._surface
        surface.check_bind()
        key = f"{surface.port_key} in [{surface.section}]"
        # After a failure the port stays what it was, though the system chose it.
        self._listener = listen(surface.bind, self._port, key)
        self._port = port_of(self._listener)

    def close(self) -> None:
        """Close a port that nobody serves."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def serve(self) -> None:
        """Answer until cancelled."""
        from anyio import sleep_forever

        from lemon_gateway.ingress_server import serving_routes

        surface = self._surface
        if self._listener is None:
            self.listen()
        async with AsyncExitStack() as stack:
            stack.callback(self.close)
            routes = await stack.enter_async_context(surface.opened())
            assert self._listener is not None
            await stack.enter_async_context(
                serving_routes(surface.id, routes, self._listener, surface.limits)
            )
            await sleep_forever()


@contextmanager
def listening(transports: Sequence[SurfaceTransport]) -> Iterator[None]:
    """The ports of all of them open; raises as `SurfaceTransport.listen`, none open then."""
    with ExitStack() as stack:
        for transport in transports:
            stack.callback(transport.close)
            transport.listen()
        yield


# --- which there are ---

SurfaceMaker = Callable[[CoreRuntime], Awaitable[Surface]]


@dataclass(frozen=True, slots=True)
class OwnSurface:
    """One of the gateway's ways in: its switch, as a key and as a test, and who builds it."""

    id: str
    switch: str
    is_on: Callable[[GatewaySection], bool]
    make: SurfaceMaker


async def _webhook(runtime: CoreRuntime) -> Surface:
    from lemon_gateway.webhook.app import surface

    return await surface(runtime)


async def _sms(runtime: CoreRuntime) -> Surface:
    from lemon_gateway.sms.endpoint import surface

    return await surface(runtime)


async def _voice(runtime: CoreRuntime) -> Surface:
    from lemon_gateway.voice.surface import surface

    return await surface(runtime)


OWN: Sequence[OwnSurface] = (
    OwnSurface("webhook", "gateway.enable_webhook", lambda s: s.enable_webhook, _webhook),
    OwnSurface("sms", "gateway.sms.webhook_enabled", lambda s: s.sms.webhook_enabled, _sms),
    OwnSurface("voice", "gateway.voice.enabled", lambda s: s.voice.enabled, _voice),
)


async def own_transports(runtime: CoreRuntime) -> tuple[SurfaceTransport, ...]:
    """What the configuration switches on, none of it listening yet."""
    section = runtime.config.gateway
    if not section.gateway_ingress_enabled:
        return ()
    return tuple([SurfaceTransport(await own.make(runtime)) for own in OWN if own.is_on(section)])


def without_effect(section: GatewaySection) -> tuple[str, ...]:
    """What is configured and does nothing, for the person who starts the server."""
    if section.gateway_ingress_enabled:
        is_unused = section.enable_webhook and not section.webhook.integrations
        return ("gateway.webhook: takes nothing without integrations",) if is_unused else ()
    return tuple(
        f"{own.switch}: does nothing without gateway.gateway_ingress_enabled"
        for own in OWN
        if own.is_on(section)
    )


# --- what surfaces share ---


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect to `address`."""
    return ipaddress.ip_address(address).is_loopback


async def credential(secrets: Secrets, *, named: str | None, usual: str, plain: str | None) -> str:
    """A credential of a surface: the secret (or variable) that the configuration names, the stored
    secret `usual`, the value in the configuration, the variable `usual`; "" without any.

    Raises `SecretsError` for a secret that is there and cannot be read.
    """
    found = (
        await _secret(secrets, named, env=True)
        or await _secret(secrets, usual, env=False)
        # As `lemon voice secrets` stores it, which asks by the names of the configuration.
        or await _secret(secrets, usual.lower(), env=False)
    )
    return found or plain or await _secret(secrets, usual, env=True)


async def _secret(secrets: Secrets, name: str | None, *, env: bool) -> str:
    if name is None:
        return ""
    try:
        return (await secrets.resolve(name, env_fallback=env)).value
    except SecretsError as exc:
        if exc.code in ("not_found", "expired"):
            return ""
        raise
