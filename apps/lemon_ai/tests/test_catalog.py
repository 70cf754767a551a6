"""The catalogue."""

from __future__ import annotations

import pytest

from lemon_ai import Catalog, ModelCost
from lemon_ai.adapters.registry import APIS, builtin_adapter
from lemon_ai.catalog import (
    ModelRow,
    describe,
    models_equal,
    supports_reasoning,
    supports_vision,
    supports_xhigh,
)
from lemon_ai.providers import PROVIDERS
from lemon_ai.tests.support import chat_model


def test_every_provider_has_rows_and_a_default() -> None:
    catalog = Catalog()
    assert catalog.get_providers() == list(PROVIDERS)
    assert list(PROVIDERS)[:2] == ["anthropic", "openai"]
    assert list(PROVIDERS)[-1] == "local"
    for provider, row in PROVIDERS.items():
        models = catalog.get_models(provider)
        if row.is_server:  # only the server knows
            assert (models, catalog.default_model(provider)) == ([], None)
            continue
        assert catalog.default_model(provider) in models
        assert catalog.get_model_ids(provider) == [model.id for model in models]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_row_is_whole(provider: str) -> None:
    for model in Catalog().get_models(provider):
        assert model.provider == provider
        assert model.api in APIS
        assert model.base_url == PROVIDERS[provider].base_url
        assert model.max_tokens <= model.context_window
        if model.cost is not None and provider != "local":
            assert model.cost.input > 0 < model.cost.output  # not known is null, never 0
            assert model.cost.cache_read > 0


def test_the_order_in_which_providers_are_preferred() -> None:
    """Those that are there, in the order of the specification, section 12."""
    order = [
        "anthropic",
        "openai",
        "openai_codex",
        "amazon_bedrock",
        "google",
        "kimi",
        "kimi_coding",
        "opencode",
        "opencode_go",
        "xai",
        "mistral",
        "cerebras",
        "deepseek",
        "qwen",
        "minimax",
        "zai",
        "azure_openai_responses",
        "google_vertex",
        "groq",
        "huggingface",
        "minimax_cn",
        "fireworks",
        "openrouter",
        "vercel_ai_gateway",
        "ollama",
        "lm_studio",
        "vllm",
        "llama_cpp",
        "local",
    ]
    assert list(PROVIDERS) == [name for name in order if name in PROVIDERS]


def test_a_provider_is_read_when_it_is_asked_for() -> None:
    catalog = Catalog()
    assert catalog.default_model("openai") is not None
    assert list(catalog._models) == ["openai"]


def test_questions_about_models() -> None:
    catalog = Catalog()
    sonnet = catalog.default_model("anthropic")
    embedded = catalog.default_model("local")
    assert sonnet is not None
    assert embedded is not None
    assert supports_vision(sonnet)
    assert supports_reasoning(sonnet)
    assert supports_xhigh(sonnet)
    assert not supports_vision(embedded)
    assert not supports_reasoning(embedded)
    assert not supports_xhigh(embedded)
    grok = catalog.get_model("xai", "grok-4.5")
    assert grok is not None
    assert not supports_xhigh(grok)
    elsewhere = sonnet.model_copy(update={"base_url": "https://proxy.example"})
    assert models_equal(sonnet, elsewhere)
    assert not models_equal(sonnet, embedded)
    assert not models_equal(sonnet, None)


def test_rows_as_they_are_shown() -> None:
    catalog = Catalog()
    rows = describe(catalog)
    assert [row.provider for row in rows if row.is_default] == [
        name for name, row in PROVIDERS.items() if not row.is_server
    ]
    xai = describe(catalog, provider="xai")
    assert xai[0] == ModelRow(
        provider="xai",
        id="grok-4.7",
        name="Grok 4.7",
        context_window=500_000,
        max_tokens=500_000,
        input_price=2,
        output_price=6,
        vision=True,
        thinking=True,
        is_default=True,
    )
    assert all(row.vision for row in describe(catalog, vision=True))
    thinking = describe(catalog, thinking=True)
    assert "smollm2-135m-instruct" not in [row.id for row in thinking]
    assert describe(catalog, provider="nobody") == []
    unpriced = next(row for row in rows if (row.provider, row.id) == ("kimi", "kimi-k3"))
    assert (unpriced.input_price, unpriced.output_price) == (None, None)


@pytest.mark.behaviour("lemon_ai.20")
@pytest.mark.parametrize("provider", [row.id for row in PROVIDERS.values() if row.is_server])
def test_a_server_of_ones_own_takes_any_model_and_no_money(provider: str) -> None:
    preset = PROVIDERS[provider].base_url
    model = Catalog().endpoint_model(provider, "anything:7b", preset)
    assert (model.context_window, model.max_tokens) == (8_192, 4_096)
    assert (model.input, model.reasoning) == (("text",), False)
    assert model.cost == ModelCost()


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
    assert catalog.get_providers() == [*PROVIDERS, "mine"]
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


def test_what_a_known_provider_speaks_elsewhere() -> None:
    catalog = Catalog()
    url = "https://proxy.example"
    assert catalog.endpoint_model("openai", "gpt-5.1", url).api == "openai_completions"
    assert catalog.endpoint_model("anthropic", "claude-haiku-4-5", url).api == "anthropic_messages"
    assert catalog.endpoint_model("anthropic", "mystery", url).api == "anthropic_messages"
    assert catalog.endpoint_model("my_box", "mystery", url).api == "openai_completions"


def test_every_api_of_a_provider_has_an_adapter() -> None:
    """Adding a provider of a known API is a row; this is all that it needs."""
    for row in PROVIDERS.values():
        assert row.api in APIS
        assert row.api_elsewhere is None or row.api_elsewhere in APIS
    assert all(builtin_adapter(api) is not None for api in APIS)
    assert builtin_adapter("smoke_signals") is None
