"""The order of those who may answer (specification 10.5)."""

from __future__ import annotations

from typing import Any

import pytest

from lemon_agent.runtime.health import PoolRotator
from lemon_agent.runtime.routing import ProviderState, RoutingPlan, plan, preview
from lemon_agent.runtime.settings import ModelSettings
from lemon_core.config.model import Defaults
from lemon_core.config.provider_routing import ProviderRouting
from lemon_core.testing import FakeClock

READY = ("openai", "groq", "mistral", "xai", "deepseek")
ORDER = ("anthropic", "openai", "xai", "mistral", "deepseek", "groq", "local")


def states(*ready: str) -> dict[str, ProviderState]:
    return {
        name: ProviderState(
            name, known=True, configured=name in ready, credential_ready=name in ready
        )
        for name in ORDER
    }


def settings(routing: dict[str, Any] | None = None, **defaults: str) -> ModelSettings:
    return ModelSettings(
        Defaults(**defaults),  # type: ignore[arg-type]  # names of providers and models
        routing=ProviderRouting.model_validate(routing or {}),
    )


def names(found: RoutingPlan) -> list[str]:
    return [c.provider for c in found.candidates]


FULL = {
    "fallback_providers": ["deepseek", "openai"],
    "default_profile": "work",
    "profiles": {
        "work": {
            "fallback_providers": ["groq"],
            "distribution": {"xai": 1.0, "mistral": 3.0, "anthropic": 1.0},
        }
    },
    "default_pool": "team",
    "credential_pools": {
        "team": {"providers": ["groq", "openrouter"], "credentials": {"groq": ["secret:a"]}}
    },
}


@pytest.mark.behaviour("lemon_agent.20")
def test_the_order_is_that_of_the_sources_and_the_primary_wins() -> None:
    found = plan({"provider": "OpenAI"}, settings(FULL), states(*READY))
    assert names(found) == [
        "openai", "groq", "mistral", "anthropic", "xai", "openrouter", "deepseek",
    ]  # fmt: skip
    assert [c.role for c in found.candidates] == ["primary"] + ["fallback"] * 6
    assert found.selected is found.candidates[0]
    by_name = {c.provider: c for c in found.candidates}
    assert (by_name["groq"].pool, by_name["groq"].strategy) == ("team", "priority")
    assert by_name["mistral"].pool is None
    # Not in the catalogue, and without a key: known or not, neither is ever chosen.
    assert not by_name["openrouter"].known
    assert not by_name["anthropic"].selectable


@pytest.mark.behaviour("lemon_agent.20")
@pytest.mark.parametrize("word", ["fallbackProviders", "fallback_providers"])
def test_named_stand_ins_replace_the_configured_ones(word: str) -> None:
    found = plan(
        {"requestedProvider": "xai", word: ["groq", "xai"]}, settings(FULL), states(*READY)
    )
    assert names(found) == ["xai", "groq"]
    assert names(plan({"provider": "xai", word: []}, settings(FULL), states(*READY))) == ["xai"]


@pytest.mark.behaviour("lemon_agent.20")
def test_a_request_may_choose_profile_and_pool() -> None:
    routing = {
        **FULL,
        "profiles": {**FULL["profiles"], "play": {"credential_pool": "mine"}},  # type: ignore[dict-item]
        "credential_pools": {
            **FULL["credential_pools"],  # type: ignore[dict-item]
            "mine": {"credentials": {"xai": "env:X"}},
        },
    }
    found = plan({"provider": "groq", "profile": "play"}, settings(routing), states(*READY))
    assert (found.profile, found.pool) == ("play", "mine")
    assert names(found) == ["groq", "xai", "deepseek", "openai"]
    other = {"provider": "groq", "profile": "play", "credentialPool": "team"}
    assert plan(other, settings(routing), states(*READY)).pool == "team"


@pytest.mark.behaviour("lemon_agent.20")
def test_nobody_named_the_default_or_the_first_ready_one_is_asked_for() -> None:
    assert plan({}, settings(), states("groq", "xai")).requested == "xai"
    assert plan({}, settings(provider="groq"), states("groq", "xai")).requested == "groq"
    assert plan({}, settings(provider="openai"), states("groq")).requested == "groq"
    by_model = plan({}, settings(model="groq:m"), states("groq", "xai"))
    assert (by_model.requested, by_model.model) == ("groq", "m")
    named = plan({"requestedModel": "xai:grok"}, settings(), states("groq", "xai"))
    assert (named.requested, named.model) == ("xai", "grok")


@pytest.mark.behaviour("lemon_agent.20")
@pytest.mark.behaviour("lemon_agent.22")
def test_the_embedded_model_follows_only_when_nobody_is_ready() -> None:
    routing = {"fallback_providers": ["groq"]}
    assert names(plan({"provider": "openai"}, settings(routing), states("local"))) == [
        "openai",
        "groq",
        "local",
    ]
    with_groq = plan({"provider": "openai"}, settings(routing), states("groq", "local"))
    assert names(with_groq) == ["openai", "groq"]
    assert with_groq.selected is with_groq.candidates[1]


@pytest.mark.behaviour("lemon_agent.20")
def test_a_provider_that_fails_too_often_waits_at_the_end_and_stays() -> None:
    routing = {"fallback_providers": ["groq", "xai"]}
    found = plan(
        {"provider": "openai"},
        settings(routing),
        states(*READY),
        is_open=lambda name: name in ("openai", "groq"),
    )
    assert names(found) == ["xai", "openai", "groq"]
    assert [c.demotions for c in found.candidates] == [(), ("circuit_open",), ("circuit_open",)]
    assert found.selected is found.candidates[0]
    assert names(plan({"provider": "openai"}, settings(routing), states(*READY)))[0] == "openai"


@pytest.mark.behaviour("lemon_agent.20")
def test_a_pool_that_takes_turns_does_so_by_session() -> None:
    pools = {"team": {"providers": ["groq", "xai", "mistral"], "strategy": "round_robin"}}
    config = settings({"default_pool": "team", "credential_pools": pools})
    rotator = PoolRotator(FakeClock())

    def order(session: str | None) -> list[str]:
        return names(
            plan(
                {"provider": "openai"},
                config,
                states(*READY),
                rotator=rotator,
                rotation_key=session,
            )
        )

    assert order("s1") == ["openai", "groq", "xai", "mistral"]
    assert order("s2") == ["openai", "xai", "mistral", "groq"]
    assert order("s1") == ["openai", "groq", "xai", "mistral"]
    assert order(None) == ["openai", "mistral", "groq", "xai"]


@pytest.mark.behaviour("lemon_agent.20")
def test_without_the_need_for_credentials_every_known_provider_may_be_chosen() -> None:
    config = settings({"require_credentials": False})
    found = plan({"provider": "anthropic"}, config, states())
    assert found.selected is found.candidates[0]


def show(config: ModelSettings, params: dict[str, object], *ready: str) -> dict[str, Any]:
    known = states(*ready)
    found = plan(params, config, known)
    return preview(found, config, known, lambda name: {"team": 1 if name == "groq" else 0})


@pytest.mark.behaviour("lemon_agent.20")
def test_the_preview_has_exactly_the_listed_keys() -> None:
    shown = show(settings(FULL), {"provider": "openai", "model": "gpt-x"}, *READY)
    assert list(shown) == [
        "enabled", "requestedProvider", "requestedModel", "selectedProvider", "selectedModel",
        "decision", "selectedProfile", "selectedCredentialPool", "fallbackProviders",
        "candidateProviders", "profileDistribution", "credentialPool", "cleanup",
    ]  # fmt: skip
    assert list(shown["candidateProviders"][0]) == [
        "provider", "role", "known", "configured", "credentialReady", "selected", "demotions",
    ]  # fmt: skip
    assert (shown["requestedModel"], shown["selectedModel"]) == ("gpt-x", "gpt-x")
    assert shown["fallbackProviders"] == [
        "groq", "mistral", "anthropic", "xai", "openrouter", "deepseek",
    ]  # fmt: skip
    assert shown["profileDistribution"] == {"xai": 1.0, "mistral": 3.0, "anthropic": 1.0}
    assert shown["credentialPool"] == {
        "selectedPool": "team",
        "strategy": "priority",
        "configuredProviders": ["groq", "openrouter"],
        "credentialCounts": {"groq": 1, "openrouter": 0},
        "providers": [
            {"provider": "groq", "known": True, "credentialReady": True, "referenceCount": 1},
            {
                "provider": "openrouter",
                "known": False,
                "credentialReady": False,
                "referenceCount": 0,
            },
        ],
    }
    assert set(shown["cleanup"].values()) == {False}


@pytest.mark.behaviour("lemon_agent.20")
@pytest.mark.parametrize(
    ("routing", "ready", "decision", "selected"),
    [
        ({}, ["openai"], "selected_primary", "openai"),
        ({"fallback_providers": ["groq"]}, ["groq"], "selected_fallback", "groq"),
        ({"fallback_providers": ["groq"]}, [], "no_ready_provider", None),
        (
            {"enabled": False, "fallback_providers": ["groq"]},
            ["openai"],
            "routing_disabled",
            "openai",
        ),
    ],
)
def test_the_decision_says_what_came_of_it(
    routing: dict[str, Any], ready: list[str], decision: str, selected: str | None
) -> None:
    shown = show(settings(routing), {"provider": "openai"}, *ready)
    assert (shown["decision"], shown["selectedProvider"]) == (decision, selected)
    if not shown["enabled"]:
        assert shown["fallbackProviders"] == []
