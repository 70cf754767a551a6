"""Which key goes with a call, and to which host.

A key belongs to the base URL that was set for the same provider in the same place: one that the
caller passes goes where the caller's model points; one from the environment goes to the vendor's
host, or, when the environment also sets a base URL for that provider, to that URL only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from lemon_ai.errors import AIError
from lemon_ai.providers import PROVIDERS, Provider
from lemon_ai.transport import without_userinfo
from lemon_ai.types import ErrorInfo, Model, StreamOptions

_DEFAULT_PORTS = {"http": 80, "https": 443}


class MissingKey(AIError):
    """The vendor's host needs a key and none was found."""

    code = "missing_api_key"

    def __init__(self, provider: str, variable: str, base_url: str) -> None:
        super().__init__(
            f"no API key for provider {provider} at {base_url}: set {variable} or pass api_key"
        )
        self.provider, self.variable = provider, variable

    def info(self) -> ErrorInfo:
        """The same as data."""
        return ErrorInfo(category="auth", code=self.code, message=str(self))


class MissingBaseUrl(AIError):
    """The provider has no host of its own, and none was named."""

    code = "missing_base_url"

    def __init__(self, row: Provider) -> None:
        names = [name for name in (row.base_url_variable, row.resource_variable) if name]
        super().__init__(
            f"no base URL for provider {row.id}: set {' or '.join(names)} or pass base_url"
        )
        self.provider = row.id

    def info(self) -> ErrorInfo:
        """The same as data."""
        return ErrorInfo(category="client", code=self.code, message=str(self))


def options_for(model: Model, options: StreamOptions) -> Mapping[str, Any]:
    """`provider_options` for this model: those of its api, then those of its provider."""
    given = options.provider_options
    return {**given.get(model.api, {}), **given.get(model.provider, {})}


def resolve_base_url(model: Model, options: StreamOptions, env: Mapping[str, str]) -> str:
    """Where this call goes: what the caller's options say, else the model, else the environment.

    Raises MissingBaseUrl for a provider whose host only the caller can know.
    """
    row = PROVIDERS.get(model.provider)
    # Where a call goes and its key are the provider's alone: others may speak the same API.
    given = options.provider_options.get(model.provider, {})
    if given.get("base_url"):
        return str(given["base_url"])
    if row is not None and row.resource_url and given.get("resource_name"):
        return row.resource_url.format(resource_name=given["resource_name"])
    if model.base_url or row is None:
        return model.base_url
    found = _base_of_environment(row, env)
    if not found and row.resource_url:
        raise MissingBaseUrl(row)
    return found or ""


def base_url_of(provider: str, env: Mapping[str, str]) -> str:
    """Where a provider is when nobody says: at the environment's base URL, else the vendor's own;
    empty when neither exists."""
    row = PROVIDERS.get(provider)
    return "" if row is None else _base_of_environment(row, env) or row.base_url


def may_have_environment(
    provider: str, base_url: str, env: Mapping[str, str], *, is_home: bool
) -> bool:
    """Whether what the environment has for a provider may go to this base URL: to the one that it
    sets, else to the vendor's own hosts (`is_home`)."""
    row = PROVIDERS.get(provider)
    set_here = row and _base_of_environment(row, env)
    if not base_url:
        return True
    return same_base(set_here, base_url) if set_here else is_home


def _base_of_environment(row: Provider, env: Mapping[str, str]) -> str | None:
    """The base URL that the environment sets for this provider."""
    if row.base_url_variable and env.get(row.base_url_variable):
        return env[row.base_url_variable]
    if row.resource_variable and env.get(row.resource_variable):
        return row.resource_url.format(resource_name=env[row.resource_variable])
    return None


def resolve_api_key(model: Model, options: StreamOptions, env: Mapping[str, str]) -> str | None:
    """The key for this call; None where none is needed (any host that is no vendor's).

    Raises MissingKey for a vendor's host.
    """
    if options.api_key is not None and options.api_key.get_secret_value():
        return options.api_key.get_secret_value()
    given = options.provider_options.get(model.provider, {}).get("api_key")
    if given:
        return given.get_secret_value() if isinstance(given, SecretStr) else str(given)
    rows = _candidates(model)
    for row in rows:
        if _belongs(row, model.base_url, env):
            for variable in row.key_variables:
                if env.get(variable):
                    return env[variable]
    for row in rows:
        at_home = same_host(row.base_url, model.base_url) or row.resource_url
        if row.key_variables and at_home and not row.is_server:
            where = without_userinfo(model.base_url)
            raise MissingKey(model.provider, row.key_variables[0], where)
    return None


def _candidates(model: Model) -> list[Provider]:
    """The model's own provider first, then whoever else lives on the same host."""
    own = PROVIDERS.get(model.provider)
    family = [row for row in PROVIDERS.values() if same_host(row.base_url, model.base_url)]
    return [own, *(row for row in family if row is not own)] if own else family


def _belongs(row: Provider, base_url: str, env: Mapping[str, str]) -> bool:
    set_here = _base_of_environment(row, env)
    if set_here:
        return same_base(set_here, base_url)
    return same_host(row.base_url, base_url)


def same_host(left: str, right: str) -> bool:
    """Whether both URLs lead to one scheme, host and port."""
    return bool(left) and _origin(left) == _origin(right)


def same_base(left: str, right: str) -> bool:
    """Whether both are one base URL, slashes at the end aside."""
    return same_host(left, right) and (
        urlsplit(left).path.rstrip("/") == urlsplit(right).path.rstrip("/")
    )


@lru_cache(maxsize=256)
def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    return parts.scheme, parts.hostname or "", port or _DEFAULT_PORTS.get(parts.scheme)
