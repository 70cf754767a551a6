"""The credentials of providers: which one goes with a call, and who has any.

For one provider the places of a key are tried in order (`sources`); credentials of a pool come
before that single one. Whatever is shown of them is a reference, never a key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lemon_agent.runtime.health import CredentialHealth, PoolRotator
from lemon_agent.runtime.names import kind_of, normal_name
from lemon_agent.runtime.options import Look, configured_options
from lemon_agent.runtime.providers import ProviderAccess, ProviderTable, is_ready
from lemon_agent.runtime.secret_cache import SecretCache
from lemon_agent.runtime.settings import ModelSettings
from lemon_agent.runtime.sources import Source
from lemon_core.config.provider_routing import CredentialPool
from lemon_core.logs import get_logger

log = get_logger(__name__)

DEFAULT_REF: Final = "default"

Persist = Callable[[str, str], Awaitable[None]]
OAuthResolver = Callable[[str, str, Persist], Awaitable[str | None]]
"""The key in an OAuth payload, renewed and stored when its time is over; None for any other value.

Raises lemon_ai's `AIError` when there is no key to be had.
"""


@dataclass(frozen=True, slots=True)
class Credential:
    """A key and what it is called in records.

    `options` are the provider's settings that go with it, as `provider_options` has them.
    """

    ref: str
    api_key: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """The key of a provider, or why there is none; the reason names no secret and no variable."""

    api_key: str | None = field(default=None, repr=False)
    reason: str | None = None


class Credentials:
    """Every credential of one runtime, with what was learned about each of them.

    `settings` gives the configuration as it is now. Methods raise `StoreError` when the store of
    the secrets does not answer.
    """

    def __init__(
        self,
        settings: Callable[[], ModelSettings],
        table: Callable[[], ProviderTable],
        secrets: SecretCache,
        health: CredentialHealth,
        rotator: PoolRotator,
        *,
        oauth: OAuthResolver | None = None,
    ) -> None:
        self._settings, self._table, self._secrets = settings, table, secrets
        self._health, self._rotator, self._oauth = health, rotator, oauth
        self._ready: tuple[object, frozenset[str], ProviderTable] | None = None
        self._told: set[tuple[str, str]] = set()

    # -- one provider ------------------------------------------------------------------------

    async def find(self, provider: str) -> KeyLookup:
        """The provider's single key, without its pools."""
        access = self._table().get(provider)
        if access is None:
            return KeyLookup(reason="this provider is not known")
        reasons: list[str] = [access.sources.problem] if access.sources.problem else []
        for place in access.sources.places:
            key, problem = await self._take(access.name, place)
            if key is not None:
                return KeyLookup(key)
            if problem is not None:
                reasons.append(problem)
        for reason in reasons:
            self._tell(access.name, reason)
        return KeyLookup(reason="; ".join(reasons) or "no credential is configured")

    async def list_api_keys(
        self,
        provider: str,
        pool: str | None = None,
        profile: str | None = None,
        *,
        session_id: str | None = None,
        takes_turn: bool = True,
    ) -> Sequence[Credential]:
        """The provider's credentials: those of its pool in order, then the single one.

        References that lead nowhere are left out. A pool that takes turns begins with the one whose
        turn it is, unless this is only a look; a session keeps its place.
        """
        access = self._table().get(provider)
        if access is None:
            return ()
        options = await configured_options(access, self._settings().environ, self._look(access))
        found = [
            Credential(ref, key, options)
            for ref in self._refs(access, pool, profile, session_id, takes_turn)
            if (key := await self._of_reference(ref)) is not None
        ]
        key = (await self.find(access.name)).api_key
        if key is not None or options:
            found.append(Credential(DEFAULT_REF, key, options))
        return found

    async def get_api_key(self, provider: str) -> str | None:
        """The key to use now: the first that does not rest, or the first when all do.

        Only a look: whose turn it is, and which resting one is tried, is settled by the call.
        """
        if not self._settings().routing.credential_pools:
            return (await self.find(provider)).api_key
        name = normal_name(provider)
        found = [c for c in await self.list_api_keys(name, takes_turn=False) if c.api_key]
        awake = (c for c in found if not self._health.rests(name, c.ref))
        first = next(awake, found[0] if found else None)
        return None if first is None else first.api_key

    # -- who has any -------------------------------------------------------------------------

    async def has_credentials(self, provider: str) -> bool:
        """Whether the provider can be asked; what is stored is not decrypted for this."""
        access = (await self.table()).get(provider)
        return access is not None and access.is_ready

    async def table(self) -> ProviderTable:
        """The providers, with those ready that a stored secret or a pool makes ready."""
        table, settings = self._table(), self._settings()
        waiting = [access for access in table.all if not access.is_ready]
        stored = await self._secrets.names() if waiting else frozenset[str]()
        known = self._ready
        if known is not None and known[0] is table and known[1] == stored:
            return known[2]
        more = {
            access.name
            for access in waiting
            if is_ready(access, settings.environ, has_key=self._has_key(access, stored))
        }
        ready = table.with_ready(more)
        self._ready = (table, stored, ready)
        return ready

    def reference_counts(self, provider: str) -> Mapping[str, int]:
        """How many references each pool has for the provider."""
        pools = self._settings().routing.credential_pools
        return {name: len(_pool_refs(pool, provider)) for name, pool in pools.items()}

    def _has_key(self, access: ProviderAccess, stored: frozenset[str]) -> bool:
        settings = self._settings()
        if kind_of(access.name) != "local_server" and any(
            self._exists(place, stored) for place in access.sources.places
        ):
            return True
        pools = () if access.is_foreign else settings.routing.credential_pools.values()
        return any(
            ref.removeprefix("secret:") in stored
            or bool(settings.environ.get(ref.removeprefix("env:"), "") and ref.startswith("env:"))
            for pool in pools
            for ref in _pool_refs(pool, access.name)
        )

    def _exists(self, place: Source, stored: frozenset[str]) -> bool:
        if place.secret is None:
            return place.value is not None
        variable = place.may_be_variable and self._settings().environ.get(place.secret, "")
        return place.secret in stored or bool(variable)

    # -- inside ------------------------------------------------------------------------------

    def _tell(self, provider: str, reason: str) -> None:
        """Once: the same is found again with every call."""
        if (provider, reason) not in self._told:
            self._told.add((provider, reason))
            log.warning("credentials.none", provider=provider, reason=reason)

    def _refs(
        self,
        access: ProviderAccess,
        pool: str | None,
        profile: str | None,
        session: str | None,
        takes_turn: bool,
    ) -> Sequence[str]:
        routing = self._settings().routing
        chosen = routing.profiles.get(profile or routing.default_profile or "")
        name = pool or (chosen and chosen.credential_pool) or routing.default_pool
        found = routing.credential_pools.get(name or "")
        # A key of the owner's does not go to a URL that a project's file has set.
        if found is None or access.is_foreign:
            return ()
        refs = _pool_refs(found, access.name)
        if found.strategy == "priority" or not takes_turn:
            return refs
        return self._rotator.order(f"keys:{name}:{access.name}", refs, session)

    async def _of_reference(self, ref: str) -> str | None:
        """The key behind a pool's reference; a missing secret is not looked for elsewhere."""
        if ref.startswith("env:"):
            return self._settings().environ.get(ref.removeprefix("env:"), "").strip() or None
        name = ref.removeprefix("secret:")
        value = await self._secrets.get(name)
        key, _ = (None, None) if value is None else await self._opened(name, value, "any")
        return key

    async def _take(self, provider: str, place: Source) -> tuple[str | None, str | None]:
        """The key in this place, or None and what is wrong with what is there."""
        if place.secret is None:
            value, name = place.value, f"{provider} key"
        else:
            value, name = await self._secret(place), place.secret
        if value is None:
            return None, None
        return await self._opened(name, value, place.accepts)

    async def _secret(self, place: Source) -> str | None:
        name = place.secret or ""
        value = await self._secrets.get(name)
        if value is None and place.may_be_variable:
            value = self._settings().environ.get(name, "").strip()
        return value or None

    async def _opened(self, name: str, value: str, accepts: str) -> tuple[str | None, str | None]:
        """The key in a value that may be an OAuth payload."""
        if not _is_payload(value):
            wrong = accepts == "oauth"
            return (None, "an OAuth payload is needed, not a key") if wrong else (value, None)
        if accepts == "raw":
            return None, "a plain key is needed, not an OAuth payload"
        if self._oauth is None:
            return None, "OAuth payloads cannot be read here"
        from lemon_ai.errors import AIError

        try:
            key = await self._oauth(name, value, self._secrets.put)
        except AIError as exc:
            # Not its text: that names the secret.
            return None, f"the OAuth payload gives no key ({exc.info().code or exc.code})"
        return (key, None) if key else (None, "the stored payload is none that is known")

    def _look(self, access: ProviderAccess) -> Look:
        async def look(name: str) -> str | None:
            return await self._secret(Source(secret=name, may_be_variable=not access.is_foreign))

        return look


def _pool_refs(pool: CredentialPool, provider: str) -> Sequence[str]:
    """The pool's references for a provider, whichever way its name is written there."""
    return [
        ref
        for name, refs in pool.credentials.items()
        if normal_name(name) == provider
        for ref in refs
    ]


def _is_payload(value: str) -> bool:
    return value.lstrip().startswith("{")
