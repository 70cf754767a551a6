"""Where a provider's key may come from, as data and in order; nothing is read from the store here.

Variables of the environment, the key of the configuration, the secret that it names, the provider's
default secret. Every place is the provider's own: no other vendor's variable ever stands in.

A row whose base URL a project's file has set gets what that row itself names and nothing else: the
owner's keys are not for it. (What the owner's own rows say has been taken out by the configuration
then.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from lemon_agent.runtime.names import NAMES, ProviderName, default_secret
from lemon_core.config.model import Provider as ProviderConfig

Accepts = Literal["any", "raw", "oauth"]

# Providers that take a plain key or an OAuth payload, and are told which.
_TWO_WAYS: Final = frozenset({"anthropic", "openai_codex"})


@dataclass(frozen=True, slots=True)
class Source:
    """One place: a value that is at hand, or the name of a stored secret.

    `accepts` says what the value may be. Names of secrets and values are in no repr.
    """

    value: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    accepts: Accepts = "any"
    may_be_variable: bool = True


@dataclass(frozen=True, slots=True)
class Sources:
    """The places in order; `problem` says why there are none at all."""

    places: tuple[Source, ...] = ()
    problem: str | None = None

    @property
    def value(self) -> str | None:
        """The first value that is at hand, when no secret would come before it."""
        first = self.places[0] if self.places else None
        return None if first is None else first.value


def sources_of(
    name: str,
    row: ProviderConfig | None,
    environ: Mapping[str, str],
    *,
    is_foreign: bool = False,
) -> Sources:
    """Where the key of the provider with this normal name may come from."""
    known = NAMES.get(name)
    way = row.auth_source if row is not None else None
    if name in _TWO_WAYS and way == "oauth":
        return Sources(tuple(_oauth(known, row, is_foreign=is_foreign)))
    if name == "openai_codex" and way is None:
        # A ChatGPT token and an API key look alike and are billed apart: nobody should guess.
        return Sources(problem="auth_source is not set: oauth or api_key")
    accepts: Accepts = "raw" if name in _TWO_WAYS and way == "api_key" else "any"
    places = list(_plain(name, known, row, environ, accepts, is_foreign=is_foreign))
    if name == "anthropic" and way is None and not is_foreign:
        places += _oauth(known, row, is_foreign=is_foreign)
    return Sources(tuple(places))


def _plain(
    name: str,
    known: ProviderName | None,
    row: ProviderConfig | None,
    environ: Mapping[str, str],
    accepts: Accepts,
    *,
    is_foreign: bool,
) -> Iterator[Source]:
    variables = () if known is None or is_foreign else known.variables
    for variable in variables:
        if value := environ.get(variable, "").strip():
            yield Source(value=value, accepts=accepts)
    if row is not None and row.api_key:
        yield Source(value=row.api_key, accepts=accepts)
    if row is not None and row.api_key_secret:
        yield Source(secret=row.api_key_secret, accepts=accepts)
    if is_foreign:
        return
    if secret := default_secret(name) if known is None else known.secret:
        yield Source(secret=secret, accepts=accepts)
    for variable in variables:  # `lemon secrets import-env` stores them under their own names
        yield Source(secret=variable, accepts=accepts, may_be_variable=False)


def _oauth(
    known: ProviderName | None, row: ProviderConfig | None, *, is_foreign: bool
) -> Iterator[Source]:
    named = row and (row.oauth_secret or row.api_key_secret)
    if named:
        yield Source(secret=named, accepts="oauth")
    elif known is not None and not is_foreign:
        yield Source(secret=known.oauth_secret, accepts="oauth")
