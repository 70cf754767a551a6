"""Which key goes to which host."""

from __future__ import annotations

import pytest

from lemon_ai import Catalog, Client, Model, ModelError, StreamOptions
from lemon_ai.credentials import (
    MissingBaseUrl,
    MissingKey,
    resolve_api_key,
    resolve_base_url,
)
from lemon_ai.providers import PROVIDERS, Provider
from lemon_ai.tests.support import HELLO, chat_model

KEY = {"OPENAI_API_KEY": "sk-env"}


def vendor_model() -> Model:
    model = Catalog().default_model("openai")
    assert model is not None
    return model


@pytest.mark.behaviour("lemon_ai.17")
@pytest.mark.parametrize(
    ("base_url", "provider"),
    [
        ("http://127.0.0.1:11434/v1", "openai"),
        ("http://127.0.0.1:11434/v1", "ollama"),
        ("https://proxy.example/v1", "openai"),
        ("http://api.openai.com/v1", "openai"),  # not encrypted: not the vendor's service
        ("https://api.openai.com.evil.example/v1", "openai"),
        ("https://api.openai.com:8443/v1", "openai"),
    ],
)
def test_a_key_of_the_environment_goes_to_its_vendor_only(base_url: str, provider: str) -> None:
    assert resolve_api_key(chat_model(base_url, provider=provider), StreamOptions(), KEY) is None


VENDORS = [row for row in PROVIDERS.values() if row.base_url and not row.is_server]
_SHARED_HOSTS = frozenset({"opencode", "opencode_go"})
EVERY_KEY = {v: f"key of {v}" for row in PROVIDERS.values() for v in row.key_variables}


@pytest.mark.behaviour("lemon_ai.17")
@pytest.mark.parametrize("row", VENDORS, ids=lambda row: row.id)
def test_each_vendor_gets_its_own_key_and_nobody_elses(row: Provider) -> None:
    """For every row of the table: all keys are set, then all but its own."""
    model = chat_model(row.base_url, provider=row.id)
    if row.key_variables:
        assert resolve_api_key(model, StreamOptions(), EVERY_KEY) == EVERY_KEY[row.key_variables[0]]
    others = {v: key for v, key in EVERY_KEY.items() if v not in row.key_variables}
    if row.key_variables:
        with pytest.raises(MissingKey, match=f"set {row.key_variables[0]} "):
            resolve_api_key(model, StreamOptions(), others)


@pytest.mark.behaviour("lemon_ai.17")
@pytest.mark.parametrize("row", VENDORS, ids=lambda row: row.id)
def test_no_key_of_the_environment_goes_to_a_base_url_that_it_was_not_set_for(
    row: Provider,
) -> None:
    elsewhere = "https://proxy.example/v1"
    model = chat_model(elsewhere, provider=row.id)
    assert resolve_api_key(model, StreamOptions(), EVERY_KEY) is None
    if row.base_url_variable is None or not row.key_variables:
        return
    own = {variable: EVERY_KEY[variable] for variable in row.key_variables}
    set_here = {**own, row.base_url_variable: elsewhere}
    assert resolve_api_key(model, StreamOptions(), set_here) == own[row.key_variables[0]]
    if row.id in _SHARED_HOSTS:  # the key is another row's too, and that row lives there
        return
    with pytest.raises(MissingKey):
        resolve_api_key(chat_model(row.base_url, provider=row.id), StreamOptions(), set_here)


@pytest.mark.behaviour("lemon_ai.17")
def test_the_vendors_own_key_goes_before_the_key_of_the_family() -> None:
    here = "https://api.openai.com/v1"
    env = {**KEY, "XAI_API_KEY": "sk-xai", "XAI_BASE_URL": here}
    model = chat_model(here, provider="xai")
    assert resolve_api_key(model, StreamOptions(), env) == "sk-xai"
    del env["XAI_API_KEY"]
    assert resolve_api_key(model, StreamOptions(), env) == "sk-env"


@pytest.mark.behaviour("lemon_ai.17")
@pytest.mark.parametrize("provider", ["openai", "xai", "my_box"])
def test_an_openai_key_is_not_sent_to_another_vendor(provider: str) -> None:
    with pytest.raises(MissingKey, match="set XAI_API_KEY"):
        resolve_api_key(chat_model("https://api.x.ai/v1", provider=provider), StreamOptions(), KEY)


def test_a_server_of_ones_own_gets_its_key_when_there_is_one() -> None:
    model = chat_model("http://127.0.0.1:11434/v1", provider="ollama")
    assert resolve_api_key(model, StreamOptions(), {"OLLAMA_API_KEY": "k"}) == "k"
    assert resolve_api_key(model, StreamOptions(), {}) is None


def test_a_key_of_the_environment_goes_to_the_vendor() -> None:
    assert resolve_api_key(vendor_model(), StreamOptions(), KEY) == "sk-env"


def test_another_entry_for_the_same_vendor_falls_back_to_the_family_key() -> None:
    model = chat_model("https://api.openai.com/v1", provider="my_openai")
    assert resolve_api_key(model, StreamOptions(), KEY) == "sk-env"


@pytest.mark.behaviour("lemon_ai.17")
def test_key_and_base_url_of_the_environment_belong_together() -> None:
    env = {**KEY, "OPENAI_BASE_URL": "https://proxy.example/v1/"}
    options = StreamOptions()
    assert resolve_api_key(chat_model("https://proxy.example/v1"), options, env) == "sk-env"
    assert resolve_api_key(chat_model("https://proxy.example/other"), options, env) is None
    assert resolve_api_key(chat_model("https://other.example/v1"), options, env) is None
    with pytest.raises(MissingKey):
        resolve_api_key(vendor_model(), options, env)


@pytest.mark.behaviour("lemon_ai.17")
def test_a_missing_key_names_the_variable() -> None:
    with pytest.raises(MissingKey, match="set OPENAI_API_KEY") as caught:
        resolve_api_key(vendor_model(), StreamOptions(), {})
    assert caught.value.info().category == "auth"


def test_a_key_of_the_caller_goes_where_the_model_points() -> None:
    model = chat_model("https://proxy.example/v1")
    assert resolve_api_key(model, StreamOptions(api_key="sk-call"), KEY) == "sk-call"
    row = StreamOptions(provider_options={"openai": {"api_key": "sk-row"}})
    assert resolve_api_key(model, row, KEY) == "sk-row"
    foreign = StreamOptions(provider_options={"anthropic": {"api_key": "sk-foreign"}})
    assert resolve_api_key(model, foreign, KEY) is None


@pytest.mark.anyio
async def test_a_missing_key_ends_in_an_error_event_without_a_request() -> None:
    async with Client(env={}) as client:
        with pytest.raises(ModelError, match="set OPENAI_API_KEY"):
            await client.complete(vendor_model(), HELLO)


AZURE = "azure_openai_responses"
AZURE_ENV = {"AZURE_OPENAI_API_KEY": "sk-azure", "AZURE_OPENAI_RESOURCE_NAME": "mine"}
MINE = "https://mine.openai.azure.com/openai/v1"


def azure_model(base_url: str = "") -> Model:
    return Model(id="gpt", api=AZURE, provider=AZURE, base_url=base_url)


def test_the_host_of_a_provider_whose_customers_each_have_one() -> None:
    model, none = azure_model(), StreamOptions()
    assert resolve_base_url(model, none, AZURE_ENV) == MINE
    both = {**AZURE_ENV, "AZURE_OPENAI_BASE_URL": "https://other.example"}
    assert resolve_base_url(model, none, both) == "https://other.example"
    assert resolve_base_url(azure_model("https://model.example"), none, both) == (
        "https://model.example"
    )
    named = StreamOptions(provider_options={AZURE: {"resource_name": "yours"}})
    assert resolve_base_url(model, named, both) == "https://yours.openai.azure.com/openai/v1"
    given = StreamOptions(provider_options={AZURE: {"base_url": "https://given.example"}})
    assert resolve_base_url(azure_model("https://model.example"), given, both) == (
        "https://given.example"
    )
    with pytest.raises(MissingBaseUrl, match="AZURE_OPENAI_BASE_URL or AZURE_OPENAI_RESOURCE_NA"):
        resolve_base_url(model, none, {})


@pytest.mark.behaviour("lemon_ai.17")
def test_its_key_goes_to_the_host_that_was_set_with_it() -> None:
    none = StreamOptions()
    assert resolve_api_key(azure_model(MINE), none, AZURE_ENV) == "sk-azure"
    for elsewhere in ("https://yours.openai.azure.com/openai/v1", "https://proxy.example"):
        with pytest.raises(MissingKey, match="set AZURE_OPENAI_API_KEY"):
            resolve_api_key(azure_model(elsewhere), none, AZURE_ENV)
    assert resolve_api_key(
        azure_model(MINE), none, {"OPENAI_API_KEY": "sk-openai"} | AZURE_ENV
    ) == ("sk-azure")


@pytest.mark.anyio
async def test_a_missing_host_ends_in_an_error_event() -> None:
    async with Client(env={}) as client:
        with pytest.raises(ModelError, match="set AZURE_OPENAI_BASE_URL"):
            await client.complete(azure_model(), HELLO)


@pytest.mark.behaviour("lemon_ai.17")
def test_anthropics_key_goes_to_anthropic() -> None:
    env = {"ANTHROPIC_API_KEY": "sk-ant", **KEY}
    model = Catalog().default_model("anthropic")
    assert model is not None
    assert resolve_api_key(model, StreamOptions(), env) == "sk-ant"
    assert resolve_api_key(vendor_model(), StreamOptions(), env) == "sk-env"
    moved = model.model_copy(update={"base_url": "https://proxy.example"})
    assert resolve_api_key(moved, StreamOptions(), env) is None
    set_here = {**env, "ANTHROPIC_BASE_URL": "https://proxy.example"}
    assert resolve_api_key(moved, StreamOptions(), set_here) == "sk-ant"


def test_a_key_given_for_a_wire_api_goes_nowhere() -> None:
    """Several vendors speak it."""
    options = StreamOptions(provider_options={"openai_completions": {"api_key": "sk-api"}})
    assert resolve_api_key(chat_model("https://proxy.example/v1"), options, {}) is None
