"""Stored secrets for tests: real `Secrets` over a store that counts what it is asked."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lemon_agent.runtime import Credentials, ModelSettings, ProviderTable
from lemon_agent.runtime.credentials import OAuthResolver
from lemon_agent.runtime.health import CredentialHealth, PoolRotator
from lemon_agent.runtime.secret_cache import SecretCache
from lemon_core.bus import Bus
from lemon_core.config.model import Defaults, Provider
from lemon_core.config.provider_routing import ProviderRouting
from lemon_core.master_key import MasterKeyChain, default_providers
from lemon_core.paths import PathSettings
from lemon_core.secret_record import SecretInfo
from lemon_core.secrets import Secrets
from lemon_core.store import Store
from lemon_core.store.memory import MemoryBackend
from lemon_core.testing import FakeClock, temp_home


@dataclass
class Counting:
    """Core's secrets, with the reads counted."""

    inner: Secrets
    looks: int = 0
    reads: list[str] = field(default_factory=list)

    async def list(self) -> tuple[SecretInfo, ...]:
        self.looks += 1
        return await self.inner.list()

    async def get(self, name: str) -> str:
        self.reads.append(name)
        return await self.inner.get(name)

    async def set(self, name: str, value: str, *, provider: str = "manual") -> SecretInfo:
        return await self.inner.set(name, value, provider=provider)


@dataclass
class Vault:
    """The credentials of one configuration, over stored secrets."""

    stored: Counting
    clock: FakeClock
    health: CredentialHealth
    credentials: Credentials
    settings: ModelSettings


def secrets_in(paths: PathSettings, clock: FakeClock, environ: MutableMapping[str, str]) -> Secrets:
    """Secrets in memory, with a master key from the environment."""
    environ["LEMON_SECRETS_MASTER_KEY"] = base64.b64encode(bytes(range(32))).decode()
    store = Store(MemoryBackend())
    return Secrets(store, clock, MasterKeyChain(default_providers(paths, environ)), Bus(), environ)


@asynccontextmanager
async def vault(
    rows: dict[str, Provider] | None = None,
    *,
    environ: dict[str, str] | None = None,
    routing: ProviderRouting | None = None,
    secrets: dict[str, str] | None = None,
    foreign: dict[str, str] | None = None,
    oauth: OAuthResolver | None = None,
    **more: Any,
) -> AsyncIterator[Vault]:
    """Credentials over these rows, variables and stored secrets."""
    clock = FakeClock()
    variables = dict(environ or {})
    with temp_home() as paths:
        inner = secrets_in(paths, clock, variables)
        await inner._store.open()
        stored = Counting(inner)
        for name, value in (secrets or {}).items():
            await inner.set(name, value)
        settings = ModelSettings(
            Defaults(), rows or {}, routing or ProviderRouting(), variables, foreign or {}
        )
        table = ProviderTable(
            settings.providers,
            environ=variables,
            foreign_urls=foreign,
            is_local_installed=lambda: False,
        )
        health = CredentialHealth(clock)
        credentials = Credentials(
            lambda: settings,
            lambda: table,
            SecretCache(stored, clock),
            health,
            PoolRotator(clock),
            oauth=oauth,
            **more,
        )
        yield Vault(stored, clock, health, credentials, settings)
