"""Which key goes to which host."""

from __future__ import annotations

import pytest

from lemon_ai import Catalog, Client, Model, ModelError, StreamOptions
from lemon_ai.credentials import MissingKey, resolve_api_key
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
        ("https://api.x.ai/v1", "openai"),
        ("https://api.x.ai/v1", "xai"),
        ("http://127.0.0.1:11434/v1", "openai"),
        ("https://proxy.example/v1", "openai"),
        ("http://api.openai.com/v1", "openai"),  # not encrypted: not the vendor's service
        ("https://api.openai.com.evil.example/v1", "openai"),
        ("https://api.openai.com:8443/v1", "openai"),
    ],
)
def test_a_key_of_the_environment_goes_to_its_vendor_only(base_url: str, provider: str) -> None:
    assert resolve_api_key(chat_model(base_url, provider=provider), StreamOptions(), KEY) is None


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
