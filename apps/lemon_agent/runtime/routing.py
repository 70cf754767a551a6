"""Who may answer in which order: the provider that is asked for, then those that stand in.

Pure: what is known of each provider (`ProviderState`) and which circuit breakers are open are
handed in. Nobody is taken out of the order because of a breaker; those providers wait at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from lemon_agent.runtime.health import PoolRotator
from lemon_agent.runtime.names import normal_name, split_spec
from lemon_agent.runtime.settings import ModelSettings
from lemon_ai.local_server import LOCAL_PROVIDER
from lemon_core.config.provider_routing import CredentialPool, ProviderRouting, RoutingProfile

Params = Mapping[str, object]
Role = Literal["primary", "fallback"]
Decision = Literal["selected_primary", "selected_fallback", "no_ready_provider", "routing_disabled"]
CIRCUIT_OPEN: Final = "circuit_open"


@dataclass(frozen=True, slots=True)
class ProviderState:
    """What is known of one provider; `known` is in the catalogue, or a server of one's own."""

    provider: str
    known: bool = False
    configured: bool = False
    credential_ready: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One provider in the order. `pool` and `strategy` are those it came from, or has keys in."""

    provider: str
    role: Role
    pool: str | None
    strategy: str | None
    known: bool
    configured: bool
    credential_ready: bool
    selectable: bool
    demotions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """The candidates in order, and what was asked for."""

    requested: str | None
    model: str | None
    profile: str | None
    pool: str | None
    candidates: tuple[Candidate, ...]

    @property
    def selected(self) -> Candidate | None:
        """The first that may be asked."""
        return next((c for c in self.candidates if c.selectable), None)


def plan(
    params: Params,
    settings: ModelSettings,
    states: Mapping[str, ProviderState],
    *,
    is_open: Callable[[str], bool] | None = None,
    rotator: PoolRotator | None = None,
    rotation_key: str | None = None,
) -> RoutingPlan:
    """The order for one request.

    `params` (camelCase or snake_case): `requestedProvider` or `provider`, `requestedModel` or
    `model`, `fallbackProviders`, `profile`, `credentialPool`. `states` are by normal name, in the
    order of the catalogue. Without `is_open` breakers are not looked at; with `rotator` a pool that
    takes turns begins with the provider whose turn it is for `rotation_key`.
    """
    routing = settings.routing
    requested, model = _requested(params, settings, states)
    profile_name = read(params, "profile", "routing_profile") or routing.default_profile
    profile = routing.profiles.get(profile_name or "")
    pool_name = (
        read(params, "credential_pool", "pool")
        or (profile.credential_pool if profile else None)
        or routing.default_pool
    )
    pool = routing.credential_pools.get(pool_name or "")
    order = [requested] if requested else []
    if routing.enabled:
        turn = (rotator, f"providers:{pool_name}", rotation_key)
        order += _stand_ins(params, routing, profile, pool, turn)
    found = [
        _candidate(name, "primary" if name == requested else "fallback", states, routing)
        for name in dict.fromkeys(order)
    ]
    if requested is not None and not any(c.credential_ready for c in found):
        local = states.get(LOCAL_PROVIDER)
        if local is not None and local.credential_ready and requested != LOCAL_PROVIDER:
            found.append(_candidate(LOCAL_PROVIDER, "fallback", states, routing))
    named = [_in_pool(candidate, pool_name, pool) for candidate in found]
    if is_open is not None:
        named = _demoted(named, is_open)
    used = pool_name if pool is not None else None
    return RoutingPlan(requested, model, profile_name if profile else None, used, tuple(named))


def preview(
    plan: RoutingPlan,
    settings: ModelSettings,
    states: Mapping[str, ProviderState],
    reference_counts: Callable[[str], Mapping[str, int]],
) -> dict[str, object]:
    """The plan as other programs read it: names, counts and booleans, and nothing else."""
    selected = plan.selected
    profile = settings.routing.profiles.get(plan.profile or "")
    return {
        "enabled": settings.routing.enabled,
        "requestedProvider": plan.requested,
        "requestedModel": plan.model,
        "selectedProvider": selected.provider if selected else None,
        "selectedModel": plan.model if selected and selected.role == "primary" else None,
        "decision": _decision(selected, settings.routing),
        "selectedProfile": plan.profile,
        "selectedCredentialPool": plan.pool,
        "fallbackProviders": [c.provider for c in plan.candidates if c.role == "fallback"],
        "candidateProviders": [
            {
                "provider": c.provider,
                "role": c.role,
                "known": c.known,
                "configured": c.configured,
                "credentialReady": c.credential_ready,
                "selected": c is selected,
                "demotions": list(c.demotions),
            }
            for c in plan.candidates
        ],
        "profileDistribution": dict(profile.distribution) if profile else {},
        "credentialPool": _pool_view(plan, settings.routing, states, reference_counts),
        "cleanup": cleanup(),
    }


def cleanup() -> dict[str, bool]:
    """What is never in here."""
    return {
        "includesRawApiKeys": False,
        "includesSecretNames": False,
        "includesRawBaseUrls": False,
        "includesEnvVarNames": False,
    }


# -- params ----------------------------------------------------------------------------------


def read(params: Params, *names: str) -> str | None:
    """The first text among these parameters, each in snake_case or camelCase."""
    for name in names:
        value = _either(params, name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def read_many(params: Params, *names: str) -> list[str] | None:
    """The first list of text among these parameters; one text is a list of one."""
    for name in names:
        value = _either(params, name)
        if isinstance(value, str):
            return [value]
        if isinstance(value, Sequence):
            return [item for item in value if isinstance(item, str) and item.strip()]
    return None


def _either(params: Params, name: str) -> object:
    camel = re.sub(r"_(\w)", lambda match: match[1].upper(), name)
    return params.get(name, params.get(camel))


def _requested(
    params: Params, settings: ModelSettings, states: Mapping[str, ProviderState]
) -> tuple[str | None, str | None]:
    """The provider and model that are asked for: named, else the default, else the first ready."""
    named = read(params, "requested_provider", "provider")
    model = read(params, "requested_model", "model")
    led, model_id = split_spec(model, states) if model else (None, None)
    if named or led:
        return normal_name(named or led or ""), model_id
    default, model_of_default = settings.defaults.provider, settings.defaults.model
    led, default_id = split_spec(model_of_default, states) if model_of_default else (None, None)
    name = normal_name(led or default or "") or None
    if name is not None and (state := states.get(name)) and state.credential_ready:
        return name, model_id or default_id
    ready = (s.provider for s in states.values() if s.credential_ready)
    first = next((n for n in ready if n != LOCAL_PROVIDER), None)
    # A default that is not ready stays what was asked for when nobody else is ready either.
    return first or name or (LOCAL_PROVIDER if LOCAL_PROVIDER in states else None), model_id


# -- the order -------------------------------------------------------------------------------

_Turn = tuple[PoolRotator | None, str, str | None]


def _stand_ins(
    params: Params,
    routing: ProviderRouting,
    profile: RoutingProfile | None,
    pool: CredentialPool | None,
    turn: _Turn,
) -> Iterator[str]:
    explicit = read_many(params, "fallback_providers")
    if explicit is not None:
        yield from map(normal_name, explicit)
        return
    if profile is not None:
        yield from map(normal_name, profile.fallback_providers)
        yield from map(normal_name, _by_weight(profile.distribution))
    if pool is not None:
        yield from map(normal_name, _in_turn(pool, turn))
    yield from map(normal_name, routing.fallback_providers)


def _by_weight(distribution: Mapping[str, float]) -> Iterable[str]:
    return sorted(distribution, key=lambda name: (-distribution[name], name))


def _in_turn(pool: CredentialPool, turn: _Turn) -> Sequence[str]:
    rotator, key, session = turn
    if rotator is None or pool.strategy == "priority":
        return pool.provider_names
    return rotator.order(key, pool.provider_names, session)


def _candidate(
    name: str, role: Role, states: Mapping[str, ProviderState], routing: ProviderRouting
) -> Candidate:
    state = states.get(name) or ProviderState(name)
    selectable = state.known and (state.credential_ready or not routing.require_credentials)
    return Candidate(
        provider=name,
        role=role,
        pool=None,
        strategy=None,
        known=state.known,
        configured=state.configured,
        credential_ready=state.credential_ready,
        selectable=selectable,
    )


def _in_pool(candidate: Candidate, name: str | None, pool: CredentialPool | None) -> Candidate:
    members = () if pool is None else (*pool.provider_names, *pool.credentials)
    if pool is None or candidate.provider not in map(normal_name, members):
        return candidate
    return replace(candidate, pool=name, strategy=pool.strategy)


def _demoted(candidates: Sequence[Candidate], is_open: Callable[[str], bool]) -> list[Candidate]:
    marked = [
        replace(c, demotions=(*c.demotions, CIRCUIT_OPEN)) if is_open(c.provider) else c
        for c in candidates
    ]
    return sorted(marked, key=lambda c: CIRCUIT_OPEN in c.demotions)


# -- preview ---------------------------------------------------------------------------------


def _decision(selected: Candidate | None, routing: ProviderRouting) -> Decision:
    if not routing.enabled:
        return "routing_disabled"
    if selected is None:
        return "no_ready_provider"
    return "selected_primary" if selected.role == "primary" else "selected_fallback"


def _pool_view(
    plan: RoutingPlan,
    routing: ProviderRouting,
    states: Mapping[str, ProviderState],
    reference_counts: Callable[[str], Mapping[str, int]],
) -> dict[str, object]:
    pool = routing.credential_pools.get(plan.pool or "")
    names = [] if pool is None else list(dict.fromkeys(map(normal_name, pool.provider_names)))
    counts = {name: reference_counts(name).get(plan.pool or "", 0) for name in names}
    known = {name: states.get(name) or ProviderState(name) for name in names}
    return {
        "selectedPool": plan.pool,
        "strategy": None if pool is None else pool.strategy,
        "configuredProviders": names,
        "credentialCounts": counts,
        "providers": [
            {
                "provider": name,
                "known": known[name].known,
                "credentialReady": known[name].credential_ready,
                "referenceCount": counts[name],
            }
            for name in names
        ],
    }
