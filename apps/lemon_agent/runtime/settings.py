"""What the model runtime reads of the configuration, as one value that may be replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lemon_core.config.model import Defaults
from lemon_core.config.model import Provider as ProviderConfig
from lemon_core.config.provider_routing import ProviderRouting


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Defaults, provider rows, routing, and the environment that keys are looked up in.

    `foreign_urls`: the base URLs that a project's file has set, by provider; the owner's keys are
    not for them.
    """

    defaults: Defaults = field(default_factory=Defaults)
    providers: Mapping[str, ProviderConfig] = field(default_factory=dict)
    routing: ProviderRouting = field(default_factory=ProviderRouting)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    foreign_urls: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_alternatives(self) -> bool:
        """Whether anything may stand in for a provider or its single credential."""
        routing = self.routing
        return routing.enabled and bool(
            routing.fallback_providers or routing.credential_pools or routing.profiles
        )
