"""Can a model be asked? Core knows providers by name only: what configuration, environment and
stored secrets say about them. Whoever owns the models looks closer."""

from __future__ import annotations

import re
from typing import Final

from lemon_core.config.env import KNOWN_PROVIDERS
from lemon_core.config.model import Provider
from lemon_core.doctor.context import DoctorContext
from lemon_core.doctor.report import Finding, passed, skipped, warned
from lemon_core.store.errors import StoreError

# The model that ships with Lemon and needs no credential.
EMBEDDED: Final = "local"
_SECRET_KEYS: Final = (
    "api_key_secret",
    "oauth_secret",
    "service_account_json_secret",
    "access_key_id_secret",
)


async def default_provider(context: DoctorContext) -> Finding:
    """Which provider answers when nobody names one."""
    name = default_name(context)
    known = credentialed(context, await stored_secrets(context))
    if name is None:
        if known:
            return passed(f"none is named; with credentials: {', '.join(sorted(known))}")
        return warned(
            "no provider is configured: the embedded model answers, which is small",
            "set a key, for example in the variable OPENAI_API_KEY",
        )
    return passed(f"{name} is the default")


async def credentials(context: DoctorContext) -> Finding:
    """Whether each configured provider has what opens it."""
    names = configured_names(context)
    if not names:
        return skipped("no provider is configured")
    if missing := await _without_credential(context, names):
        return warned(
            f"no credential for {', '.join(missing)}",
            f"set the variable {variable_of(missing[0])}, or name a secret in api_key_secret",
        )
    return passed(f"there are credentials for {', '.join(names)}")


async def routing(context: DoctorContext) -> Finding:
    """Whether the providers that step in can do so."""
    names = _routed(context)
    if not names:
        return skipped("no provider steps in for another")
    if missing := await _without_credential(context, names):
        return warned(
            f"no credential for {', '.join(missing)} of runtime.provider_routing",
            f"set the variable {variable_of(missing[0])}, or take it out of fallback_providers",
        )
    return passed(f"{', '.join(names)} can step in")


async def _without_credential(context: DoctorContext, names: list[str]) -> list[str]:
    known = credentialed(context, await stored_secrets(context))
    return [name for name in names if name not in known]


def default_name(context: DoctorContext) -> str | None:
    """The provider that the configuration names, by itself or in front of the model's name."""
    defaults = context.config.defaults
    if defaults.provider is not None:
        return defaults.provider
    provider, colon, _ = (defaults.model or "").partition(":")
    return provider if colon else None


def configured_names(context: DoctorContext) -> list[str]:
    """Providers with a row or variables of their own, and the default one; sorted."""
    default = default_name(context)
    return sorted({*context.config.providers, *([default] if default else [])})


def credentialed(context: DoctorContext, stored: frozenset[str]) -> frozenset[str]:
    """Providers that seem ready to be asked, given the names of the `stored` secrets."""
    rows = context.config.providers
    names = {*configured_names(context), *_routed(context), *KNOWN_PROVIDERS}
    return frozenset(n for n in names if _has_credential(context, n, rows.get(n), stored))


def _has_credential(
    context: DoctorContext, name: str, row: Provider | None, stored: frozenset[str]
) -> bool:
    if name == EMBEDDED:
        return True
    if not stored.isdisjoint(_names_of(name)):
        return True
    if context.environ.get(variable_of(name), "").strip():
        return True
    if row is None:
        return False
    # A server of one's own may do without a key.
    if row.api_key or row.base_url or row.service_account_json:
        return True
    references = [getattr(row, key) for key in _SECRET_KEYS]
    return any(r in stored or context.environ.get(r, "").strip() for r in references if r)


async def stored_secrets(context: DoctorContext) -> frozenset[str]:
    """Which of the names that matter here are stored; none when the store cannot be read."""
    if not context.has_store:
        return frozenset()
    providers = {*configured_names(context), *_routed(context), *KNOWN_PROVIDERS}
    names = {secret for name in providers for secret in _names_of(name)}
    for row in context.config.providers.values():
        names |= {value for key in _SECRET_KEYS if (value := getattr(row, key))}
    try:
        async with context.open_store() as store:
            secrets = context.make_secrets(store)
            return frozenset([name for name in sorted(names) if await secrets.exists(name)])
    except StoreError:
        return frozenset()  # the check of the store tells


def _routed(context: DoctorContext) -> list[str]:
    """The providers that step in for another, in order."""
    routing = context.config.runtime.provider_routing
    return list(routing.fallback_providers) if routing.enabled else []


def variable_of(provider: str) -> str:
    """The variable, and the secret, that holds the key of `provider`."""
    return f"{re.sub(r'[^A-Za-z0-9]', '_', provider).upper()}_API_KEY"


def _names_of(provider: str) -> tuple[str, ...]:
    """The secrets that hold the key of `provider` when nothing else is configured."""
    canonical = re.sub(r"[^a-z0-9]", "_", provider.lower())
    stem = f"llm_{canonical}_api_key"
    return variable_of(provider), stem, f"{stem}_raw"
