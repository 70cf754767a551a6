"""The providers as the configuration, the environment and the stored secrets have them now.

Nobody is asked over the network here: an OAuth token counts as it is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lemon_agent.runtime import Credentials, ProviderAccess, ProviderTable
from lemon_agent.runtime.credentials import Persist
from lemon_agent.runtime.health import CredentialHealth, PoolRotator
from lemon_agent.runtime.of_runtime import foreign_urls, settings_of
from lemon_agent.runtime.secret_cache import SecretCache
from lemon_agent.runtime.settings import ModelSettings
from lemon_ai.oauth import OAuthPayload
from lemon_ai.providers import PROVIDERS
from lemon_core.cli.base import Core, open_core
from lemon_core.commands import CommandContext

OPENAI_STYLE: Final = frozenset({"openai_completions", "openai_responses"})


@dataclass(frozen=True, slots=True)
class Usable:
    """Whether a provider can be asked, with the key if there is one; `reason` names no secret."""

    is_usable: bool
    api_key: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ProviderView:
    """The providers of one configuration, and core's pieces behind them."""

    core: Core
    settings: ModelSettings
    credentials: Credentials
    plain: ProviderTable

    async def table(self) -> ProviderTable:
        """The providers in the order of the catalogue, with those ready that a secret makes so."""
        return await self.credentials.table()

    async def usable(self, name: str) -> Usable:
        """Whether what opens the provider is there and can be read."""
        access = self.plain.get(name)
        if access is None:
            return Usable(False, reason="this provider is not known")
        found = await self.credentials.find(access.name)
        if found.api_key is not None:
            return Usable(True, found.api_key)
        row = access.row
        if row is not None and (row.api_key_secret or row.oauth_secret):
            # A secret that is named and gives nothing is no provider that needs none.
            return Usable(False, reason=found.reason)
        return Usable(access.is_ready, reason=None if access.is_ready else found.reason)


@asynccontextmanager
async def provider_view(context: CommandContext) -> AsyncIterator[ProviderView]:
    """The providers for the block. Raises `ConfigError` and `StoreError`."""
    async with open_core(context) as core:
        config, environ = core.loaded.config, core.loaded.environ
        foreign = foreign_urls(config, context.cwd, context.paths, environ)
        settings = settings_of(config, environ, foreign)
        plain = ProviderTable(settings.providers, environ=environ, foreign_urls=foreign)
        credentials = Credentials(
            lambda: settings,
            lambda: plain,
            SecretCache(core.secrets, core.clock),
            CredentialHealth(core.clock),
            PoolRotator(core.clock),
            oauth=_stored_token,
        )
        yield ProviderView(core, settings, credentials, plain)


def models_url(access: ProviderAccess) -> str | None:
    """Where the provider lists its models in the manner of OpenAI; None for those that do not."""
    if access.api not in OPENAI_STYLE:
        return None
    vendor = PROVIDERS.get(access.name)
    base_url = access.base_url or (vendor.base_url if vendor is not None else "")
    return f"{base_url.rstrip('/')}/models" if base_url else None


def at_config(context: CommandContext, config_path: Path | None) -> CommandContext:
    """`context` with another global file, for `--config-path`."""
    if config_path is None:
        return context
    path = context.cwd / config_path.expanduser()
    return replace(context, paths=replace(context.paths, config=path))


async def _stored_token(name: str, value: str, persist: Persist) -> str | None:
    payload = OAuthPayload.from_secret(value)
    return None if payload is None else payload.access_token
