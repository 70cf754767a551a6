"""Which key goes with a call, and to which host.

A key belongs to the base URL that was set for the same provider in the same place: one that the
caller passes goes where the caller's model points; one from the environment goes to the vendor's
host, or, when the environment also sets a base URL for that provider, to that URL only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from pydantic import SecretStr

from lemon_ai.errors import AIError
from lemon_ai.providers import PROVIDERS, Provider
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
        if row.key_variables and same_host(row.base_url, model.base_url):
            raise MissingKey(model.provider, row.key_variables[0], row.base_url)
    return None


def _candidates(model: Model) -> list[Provider]:
    """The model's own provider first, then whoever else lives on the same host."""
    own = PROVIDERS.get(model.provider)
    family = [row for row in PROVIDERS.values() if same_host(row.base_url, model.base_url)]
    return [own, *(row for row in family if row is not own)] if own else family


def _belongs(row: Provider, base_url: str, env: Mapping[str, str]) -> bool:
    set_here = env.get(row.base_url_variable) if row.base_url_variable else None
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
