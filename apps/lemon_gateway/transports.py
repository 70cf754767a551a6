"""Ways into the gateway that are no chat channels, and the commands that they understand.

Transports and commands are contributed (`gateway_transports`, `gateway_commands`), checked at every
start, and served only with `gateway_ingress_enabled`. What is contributed wrongly stops the start:
a transport that is not there is not noticed until somebody misses a message.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from lemon_core.bindings import BindingResolver, ChatScope
from lemon_core.config.gateway import GatewaySection
from lemon_core.config.gateway_config import GatewayConfig
from lemon_core.config.redact import shown
from lemon_core.engine_info import Transport as TransportInfo
from lemon_core.logs import get_logger
from lemon_core.supervisor import Supervisor
from lemon_gateway.errors import InvalidName, UnknownTransport

TRANSPORTS: Final = "gateway_transports"
COMMANDS: Final = "gateway_commands"
INGRESS: Final = "gateway_ingress"

WEBHOOK: Final = "webhook"
_SWITCHED: Final = frozenset({"telegram", "xmtp", WEBHOOK})
_OF_CHANNELS: Final = frozenset({"discord", "email"})
_TRANSPORT_ID: Final = re.compile(r"[a-z][a-z0-9_-]*")
_RESERVED_IDS: Final = frozenset({"default", "all"})
_COMMAND_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED_NAMES: Final = frozenset({"help", "start", "stop"})

log = get_logger("lemon_gateway.transports")


class Transport(Protocol):
    """A way in, such as the webhook."""

    @property
    def id(self) -> str:
        """Lower case letters, digits, `_` and `-`; `default` and `all` are taken."""

    async def serve(self) -> None:
        """Take messages until cancelled; after a failure it is called again."""


class TransportRegistry:
    """The transports of one gateway, by id; raises `InvalidName` for an id that cannot be one."""

    def __init__(self, transports: Iterable[Transport], section: GatewaySection) -> None:
        self._known: dict[str, Transport] = {}
        self._config = GatewayConfig(section)
        for transport in transports:
            name = transport.id
            if name in _OF_CHANNELS:
                log.warning("transports.belongs_to_channels", transport=name)
                continue
            _check_name("transport", name, _TRANSPORT_ID, _RESERVED_IDS, self._known)
            self._known[name] = transport

    def list(self) -> tuple[Transport, ...]:
        """All of them, in the order in which they were contributed."""
        return tuple(self._known.values())

    def get(self, transport_id: str) -> Transport | None:
        """The transport of that id."""
        return self._known.get(transport_id)

    def get_or_raise(self, transport_id: str) -> Transport:
        """The transport of that id; raises `UnknownTransport`."""
        found = self._known.get(transport_id)
        if found is None:
            raise UnknownTransport(transport_id, tuple(self._known))
        return found

    def enabled(self) -> tuple[Transport, ...]:
        """Those that the configuration switches on; what has no switch is on."""
        return tuple(t for t in self._known.values() if self._is_on(t.id))

    def problems(self) -> tuple[str, ...]:
        """What is switched on and cannot work, for the person who starts the server."""
        found = []
        if self._is_on(WEBHOOK) and WEBHOOK not in self._known:
            found.append("gateway.enable_webhook: no webhook transport is there to be enabled")
        if self._config.section.gateway_ingress_enabled and not self.enabled():
            found.append("gateway.gateway_ingress_enabled: no transport is there, nothing is taken")
        return tuple(found)

    def _is_on(self, transport_id: str) -> bool:
        switch = f"enable_{transport_id}"
        return transport_id not in _SWITCHED or self._config.get(switch) is True


class TransportSupervisor:
    """Serves transports, each of which fails and restarts alone."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def run(self, transport: Transport) -> None:
        """Serve one until cancelled, or until it has failed too often."""
        try:
            await self._supervisor.run(f"transport:{transport.id}", transport.serve)
        except Exception:  # runs and the other transports go on without it
            log.exception("transports.gave_up", transport=transport.id)


# --- commands ---


@dataclass(frozen=True, slots=True)
class CommandCall:
    """Where a command was given.

    `progress_scope` is what progress messages are registered under there (a session key), and
    `reply_to` the message that the command answers.
    """

    progress_scope: str
    reply_to: str | int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the user is told."""

    text: str


@dataclass(frozen=True, slots=True)
class CommandError:
    """Why nothing was done, for the user."""

    text: str


Answer = Reply | CommandError | None


class Command(Protocol):
    """A slash command."""

    @property
    def name(self) -> str:
        """The word after the slash: lower case letters, digits and `_`."""

    @property
    def description(self) -> str:
        """One line for a list of commands."""

    async def handle(self, scope: ChatScope, args: str, context: CommandCall) -> Answer:
        """Do it; None says nothing."""


class CommandRegistry:
    """The commands of one gateway, by name; raises `InvalidName` for a name that cannot be one."""

    def __init__(self, commands: Iterable[Command]) -> None:
        self._known: dict[str, Command] = {}
        for command in commands:
            _check_name("command", command.name, _COMMAND_NAME, _RESERVED_NAMES, self._known)
            self._known[command.name] = command

    def list(self) -> tuple[Command, ...]:
        """All of them, in the order in which they were contributed."""
        return tuple(self._known.values())

    def get(self, name: str) -> Command | None:
        """The command of that name."""
        return self._known.get(name)


class CancelCommand:
    """`/cancel` in reply to a progress message cancels the run that the message is about."""

    name = "cancel"
    description = "Cancel the run whose progress message you reply to"

    def __init__(self, cancel: Callable[[str, str | int], Awaitable[bool]]) -> None:
        self._cancel = cancel

    async def handle(self, scope: ChatScope, args: str, context: CommandCall) -> Answer:
        """Says something only when there was nothing to cancel: the run tells of its own end."""
        if context.reply_to is None:
            return Reply("Reply to the progress message of a run with /cancel to cancel that run.")
        if await self._cancel(context.progress_scope, context.reply_to):
            return None
        return CommandError("No running task was found for that message.")


def _check_name(
    kind: str, name: str, form: re.Pattern[str], reserved: frozenset[str], known: Iterable[str]
) -> None:
    if not form.fullmatch(name):
        raise InvalidName(kind, name, f"must have the form {form.pattern}")
    if name in reserved:
        raise InvalidName(kind, name, "is reserved")
    if name in known:
        raise InvalidName(kind, name, "is there more than once")


# --- together ---


@dataclass(frozen=True, slots=True)
class Ingress:
    """What transports work with; the capability `gateway_ingress` while they are served."""

    transports: TransportRegistry
    commands: CommandRegistry
    bindings: BindingResolver


@dataclass(frozen=True, slots=True)
class GatewayInfo:
    """What the control plane may show of the gateway; see core's `EngineInfo`."""

    transports: TransportRegistry
    section: GatewaySection

    def list_transports(self) -> tuple[TransportInfo, ...]:
        """Every transport, and whether it takes messages now."""
        on = self.transports.enabled() if self.section.gateway_ingress_enabled else ()
        return tuple(TransportInfo(t.id, t in on) for t in self.transports.list())

    def gateway_config(self) -> dict[str, object]:
        """The `gateway` section, secrets removed."""
        section = self.section.model_dump(mode="json")
        return {name: shown(("gateway", name), value) for name, value in section.items()}
