"""What the gateway tells about itself: its transports and configuration, and nothing of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, cast

from lemon_core.capabilities import Capabilities
from lemon_core.logs import get_logger

log = get_logger("lemon_core.engine_info")

ENGINE_INFO: Final = "engine_info"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Transport:
    """A way into the gateway, such as its webhook; `detail` holds no secret."""

    id: str
    enabled: bool
    detail: Mapping[str, object] | None = None


class EngineInfo(Protocol):
    """What the gateway registers under `ENGINE_INFO`."""

    def list_transports(self) -> Sequence[Transport]:
        """Every transport that this gateway knows."""

    def gateway_config(self) -> Mapping[str, object]:
        """The gateway's section of the configuration, secrets removed."""


@dataclass(frozen=True, slots=True)
class EngineInfoBridge:
    """The gateway as the control plane sees it; every answer is None when it cannot tell."""

    capabilities: Capabilities

    def list_transports(self) -> Sequence[Transport] | None:
        """Every transport."""
        return self._ask(lambda info: info.list_transports())

    def enabled_transports(self) -> Sequence[Transport] | None:
        """The transports that take messages now."""
        known = self.list_transports()
        return None if known is None else [transport for transport in known if transport.enabled]

    def get_transport(self, transport_id: str) -> Transport | None:
        """One transport; None also when there is none of that id."""
        known = self.list_transports() or ()
        return next((found for found in known if found.id == transport_id), None)

    def gateway_config(self) -> Mapping[str, object] | None:
        """The gateway's section of the configuration."""
        return self._ask(lambda info: info.gateway_config())

    def _ask(self, call: Callable[[EngineInfo], T]) -> T | None:
        # The registry is untyped; only a gateway registers under this key.
        info = cast("EngineInfo | None", self.capabilities.get(ENGINE_INFO))
        if info is None:
            return None
        try:
            return call(info)
        except Exception:  # a status page must not fail with the gateway
            log.exception("engine_info.failed")
            return None
