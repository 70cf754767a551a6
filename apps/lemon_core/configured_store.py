"""Opening the store that the configuration names; for PostgreSQL, finding its URL.

The URL holds a password, and secrets lie in the store that it would open. So it comes from a
variable, or from the embedded store, where it was put before the change to PostgreSQL
(docs/decisions/0010-where-the-store-url-comes-from.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.config.model import LemonConfig
from lemon_core.master_key import MasterKeyChain, default_providers
from lemon_core.paths import PathSettings
from lemon_core.secrets import Secrets, SecretsError
from lemon_core.store import Store, StoreSettings, StoreUnavailable, open_store
from lemon_core.store.sqlite_file import database_file

URL_VARIABLE: Final = "LEMON_STORE_URL"


def store_settings(config: LemonConfig, paths: PathSettings) -> StoreSettings:
    """The store that the configuration names; of PostgreSQL without its URL."""
    return StoreSettings(config.store.backend, paths.expand(config.store.path))


@asynccontextmanager
async def open_configured_store(
    config: LemonConfig, paths: PathSettings, environ: Mapping[str, str], clock: Clock
) -> AsyncIterator[Store]:
    """The configured store, open for the block; raises `StoreError`."""
    settings = store_settings(config, paths)
    if settings.backend == "postgres":
        settings = replace(settings, url=await _find_url(config, paths, environ, clock))
    async with open_store(settings, clock) as store:
        yield store


def without_store_url(config: LemonConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for what comes after the store is open: commands of tools need no password."""
    hidden = {URL_VARIABLE, (config.store.url_secret or "").strip()}
    return {name: value for name, value in environ.items() if name not in hidden}


async def _find_url(
    config: LemonConfig, paths: PathSettings, environ: Mapping[str, str], clock: Clock
) -> str | None:
    """The URL from a variable or from the embedded store; None when nothing names it."""
    name = (config.store.url_secret or "").strip()
    found = environ.get(URL_VARIABLE, "").strip() or environ.get(name, "").strip()
    if found or not name:
        return found or None
    embedded = paths.expand(config.store.path)
    file = database_file(embedded)
    if not file.exists():
        raise _not_found(name, f"{file} does not exist")
    keys = MasterKeyChain(default_providers(paths, environ))
    async with open_store(StoreSettings("sqlite", embedded), clock) as store:
        try:
            return await Secrets(store, clock, keys, Bus(), {}).get(name)
        except SecretsError as exc:
            raise _not_found(name, f"{file}: {exc}") from exc


def _not_found(name: str, reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the URL of the store is not found: set {URL_VARIABLE} or {name}, or store the secret "
        f"{name} while store.backend is sqlite ({reason})"
    )
