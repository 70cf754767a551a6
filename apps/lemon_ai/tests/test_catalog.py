"""The catalogue."""

from __future__ import annotations

from lemon_ai import Catalog
from lemon_ai.providers import PROVIDERS
from lemon_ai.tests.support import chat_model


def test_every_provider_has_rows_and_a_default() -> None:
    catalog = Catalog()
    assert catalog.get_providers() == list(PROVIDERS) == ["openai", "local"]
    for provider in PROVIDERS:
        models = catalog.get_models(provider)
        assert catalog.default_model(provider) in models
        assert catalog.get_model_ids(provider) == [model.id for model in models]
        for model in models:
            assert (model.provider, model.api) == (provider, PROVIDERS[provider].api)
            assert model.base_url == PROVIDERS[provider].base_url
            assert model.max_tokens <= model.context_window
            assert model.cost is not None


def test_the_embedded_model_takes_no_tools_and_costs_nothing() -> None:
    model = Catalog().default_model("local")
    assert model is not None
    assert model.id == "smollm2-135m-instruct"
    assert not model.tools
    assert model.cost is not None
    assert model.cost.input == model.cost.output == 0


def test_what_is_unknown_is_none_or_empty() -> None:
    catalog = Catalog()
    assert catalog.get_models("nobody") == []
    assert catalog.default_model("nobody") is None
    assert catalog.get_model("openai", "no-such-model") is None
    assert catalog.find_by_id("no-such-model") is None


def test_find_by_id_follows_provider_order() -> None:
    catalog = Catalog()
    found = catalog.find_by_id("gpt-6-luna")
    assert found is not None
    assert found.provider == "openai"


def test_registered_models_are_added_to_this_catalogue_only() -> None:
    catalog = Catalog()
    mine = chat_model(provider="mine")
    replaced = chat_model(provider="local", id="smollm2-135m-instruct")
    catalog.register_models("mine", [mine])
    catalog.register_models("local", [replaced])
    assert catalog.get_providers() == ["openai", "local", "mine"]
    assert catalog.get_model("mine", mine.id) == mine
    assert catalog.default_model("local") == replaced
    assert Catalog().get_model("mine", mine.id) is None


def test_a_model_behind_a_base_url_of_ones_own() -> None:
    catalog = Catalog()
    known = catalog.endpoint_model("openai", "gpt-5.1", "https://proxy.example/v1")
    assert known.base_url == "https://proxy.example/v1"
    assert known.api == "openai_completions"
    assert known.context_window == 400_000
    unknown = catalog.endpoint_model("openai", "mystery", "http://127.0.0.1:1/v1")
    assert (unknown.context_window, unknown.max_tokens) == (8_192, 4_096)
    assert (unknown.input, unknown.reasoning, unknown.cost) == (("text",), False, None)
