"""`runtime.provider_routing` (specification lemon_core 10.2, lemon_agent 10)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lemon_core.config.provider_routing import ProviderRouting
from lemon_core.tests.config.homes import Home

ROUTING = "runtime.provider_routing"


def test_the_documented_defaults() -> None:
    assert ProviderRouting().model_dump() == {
        "enabled": True,
        "require_credentials": True,
        "fallback_providers": (),
        "default_pool": None,
        "default_profile": None,
        "credential_pools": {},
        "profiles": {},
    }


def test_pools_name_their_providers_by_their_credentials(home: Home) -> None:
    home.write(
        """
        [runtime.provider_routing]
        default_pool = "work"
        default_profile = "cheap"
        [runtime.provider_routing.credential_pools.work]
        strategy = "round_robin"
        [runtime.provider_routing.credential_pools.work.credentials]
        openai = ["secret:ONE", "env:TWO", "three"]
        groq = "FOUR"
        [runtime.provider_routing.credential_pools.named]
        providers = ["anthropic"]
        credentials.openai = ["ONE"]
        [runtime.provider_routing.credential_pools.empty]
        strategy = "priority"
        [runtime.provider_routing.profiles.cheap]
        credential_pool = "work"
        fallback_providers = ["groq"]
        distribution = { openai = 3, groq = 0.5 }
        """
    )
    loaded = home.load()
    assert loaded.warnings == ()
    routing = loaded.config.runtime.provider_routing
    assert sorted(routing.credential_pools) == ["named", "work"]
    work = routing.credential_pools["work"]
    assert work.provider_names == ("openai", "groq")
    assert work.credentials == {"openai": ("secret:ONE", "env:TWO", "three"), "groq": ("FOUR",)}
    assert routing.credential_pools["named"].provider_names == ("anthropic",)
    assert routing.profiles["cheap"].distribution == {"openai": 3, "groq": 0.5}


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ({"credentials": {"openai": ["file:x"]}}, "must be secret:<name>"),
        ({"credentials": {"openai": ["env:"]}}, "must be secret:<name>"),
        ({"credentials": {"openai": [""]}}, "at least 1"),
        ({"credentials": {"openai": []}}, "at least 1"),
        ({"strategy": "random"}, "priority"),
    ],
)
def test_what_is_no_pool(pool: object, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ProviderRouting.model_validate({"credential_pools": {"p": pool}})


@pytest.mark.parametrize("weight", [0, -1, "much"])
def test_weights_are_positive(weight: object) -> None:
    with pytest.raises(ValidationError):
        ProviderRouting.model_validate({"profiles": {"p": {"distribution": {"a": weight}}}})


def test_a_pool_or_profile_that_is_not_there_is_an_error(home: Home) -> None:
    home.write(
        f"""\
        {ROUTING}.default_pool = "gone"
        {ROUTING}.default_profile = "gone"
        {ROUTING}.profiles.cheap.credential_pool = "gone"
        """
    )
    at = f"{home.global_file}:"
    assert home.errors() == [
        f"{at}1: {ROUTING}.default_pool: there is no credential pool 'gone'",
        f"{at}3: {ROUTING}.profiles.cheap.credential_pool: there is no credential pool 'gone'",
        f"{at}2: {ROUTING}.default_profile: there is no profile 'gone'",
    ]
