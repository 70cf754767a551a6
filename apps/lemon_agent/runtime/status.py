"""What may be shown of the providers: booleans and counts, never a key, a secret's name, a URL or
the name of a variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lemon_agent.runtime.credentials import Credentials
from lemon_agent.runtime.names import NAMES, normal_name
from lemon_agent.runtime.providers import ProviderTable
from lemon_agent.runtime.routing import (
    Params,
    ProviderState,
    cleanup,
    plan,
    preview,
    read_many,
)
from lemon_agent.runtime.settings import ModelSettings
from lemon_ai.local_server import LOCAL_PROVIDER
from lemon_core.config.model import Provider as ProviderConfig


async def provider_states(
    credentials: Credentials, settings: ModelSettings
) -> dict[str, ProviderState]:
    """Every provider by normal name, in the order of preference, `local` last."""
    table = await credentials.table()
    rows = {normal_name(name) for name in settings.providers}
    return {
        access.name: ProviderState(
            provider=access.name,
            known=True,
            configured=access.name in rows,
            credential_ready=access.is_ready,
        )
        for access in (*table.all, table.local)
    }


@dataclass(frozen=True, slots=True)
class ProviderStatus:
    """Looks at the providers of one configuration."""

    credentials: Credentials
    settings: ModelSettings

    async def snapshot(self, params: Params | None = None) -> dict[str, object]:
        """The status of the providers, and how a request would be routed.

        `params`: `provider` or `providers` (only these), `includeCatalog` (also those that nothing
        is configured for), and those of the plan.
        """
        params = params or {}
        states = await provider_states(self.credentials, self.settings)
        table = await self.credentials.table()
        wanted = read_many(params, "providers", "provider")
        with_catalog = any(
            params.get(name) is True for name in ("includeCatalog", "include_catalog")
        )
        if wanted is not None:
            names = list(dict.fromkeys(map(normal_name, wanted)))
        else:
            names = [n for n, s in states.items() if with_catalog or _is_of_interest(s)]
        shown = [self._provider(name, states, table) for name in names]
        # Whom the list is narrowed to says nothing about who is asked for.
        asked = {k: v for k, v in params.items() if k not in ("provider", "providers")}
        routing = plan(asked, self.settings, states)
        return {
            "providers": shown,
            "count": len(shown),
            "readyCount": sum(states[n].credential_ready for n in names if n in states),
            "defaultProvider": self.settings.defaults.provider,
            "defaultModel": self.settings.defaults.model,
            "routing": preview(routing, self.settings, states, self.credentials.reference_counts),
            "cleanup": cleanup(),
        }

    def _provider(
        self, name: str, states: Mapping[str, ProviderState], table: ProviderTable
    ) -> dict[str, object]:
        state = states.get(name) or ProviderState(name)
        known = NAMES.get(name)
        rows = {normal_name(n): row for n, row in self.settings.providers.items()}
        variables = () if known is None else known.variables
        return {
            "provider": name,
            "configName": name if known is None else known.config_name,
            "known": state.known,
            "configured": state.configured,
            "credentialReady": state.credential_ready,
            "config": _row_view(rows.get(name)),
            "ambient": {"envConfigured": any(self.settings.environ.get(v) for v in variables)},
        }


def _is_of_interest(state: ProviderState) -> bool:
    return state.configured or state.credential_ready or state.provider == LOCAL_PROVIDER


def _row_view(row: ProviderConfig | None) -> dict[str, object]:
    return {
        "apiKeyConfigured": bool(row and row.api_key),
        "apiKeySecretConfigured": bool(row and row.api_key_secret),
        "oauthSecretConfigured": bool(row and row.oauth_secret),
        "baseUrlConfigured": bool(row and row.base_url),
        "authSource": row.auth_source if row else None,
    }
