"""The bridge for apps that only want a text (specification 11), and pickers' models (10.7)."""

from __future__ import annotations

import anyio
import pytest

from lemon_agent.runtime import ModelRuntime, ModelSettings
from lemon_agent.runtime.catalog import (
    ModelEntry,
    available_catalog,
    model_label,
    model_spec,
    sorted_models,
)
from lemon_agent.text_generation import ModelNotFound, TextGenerationError, complete_text
from lemon_ai import Catalog, Client
from lemon_ai.testing import FakeChatServer, HttpError, Turn
from lemon_core.config.model import Provider

pytestmark = pytest.mark.anyio


def models_of(*, catalog: Catalog | None = None, **rows: Provider) -> ModelRuntime:
    settings = ModelSettings(providers=rows)
    return ModelRuntime(settings=lambda: settings, client=Client(env={}), catalog=catalog)


async def test_a_prompt_becomes_a_text() -> None:
    with anyio.fail_after(5):
        async with FakeChatServer([Turn(text="four")], api_key="k1") as server:
            row = Provider(base_url=server.base_url, api_key="k1")
            async with models_of(box=row) as models:
                text = await complete_text(models, "box", "m", "2+2", system_prompt="Count.")
    assert text == "four"
    assert [m["content"] for m in server.requests[0].body["messages"]] == ["Count.", "2+2"]


async def test_errors_have_a_code_each() -> None:
    with anyio.fail_after(5):
        async with models_of() as models:
            with pytest.raises(ModelNotFound) as unknown:
                await complete_text(models, "openai", "gpt-99", "hi")
            assert unknown.value.code == "model_not_found"
        async with FakeChatServer([Turn(http_error=HttpError(400, message="no such"))]) as server:
            async with models_of(box=Provider(base_url=server.base_url)) as models:
                with pytest.raises(TextGenerationError, match="no such") as failed:
                    await complete_text(models, "box", "m", "hi")
            assert failed.value.code == "ai_exception"
            assert failed.value.reason
        odd = Provider(base_url="http://box.example", api="unheard_of")
        async with models_of(box=odd) as models:
            with pytest.raises(TextGenerationError, match="unheard_of"):
                await complete_text(models, "box", "m", "hi")


async def test_a_picker_shows_the_models_of_providers_with_credentials() -> None:
    async with models_of(
        openai=Provider(api_key="k"), box=Provider(base_url="http://box/v1", models=("m1", "m2"))
    ) as models:
        found = await available_catalog(models)
    names = [entry.provider for entry in found if entry.provider != "local"]
    assert names == ["box", "openai"]
    assert [model_spec(entry) for entry in found[0].models] == ["box:m2", "box:m1"]
    assert {entry.id for entry in found[-1].models} == set(Catalog().get_model_ids("openai"))


def test_the_newest_come_first() -> None:
    def ids(provider: str, *written: str) -> list[str]:
        return [e.id for e in sorted_models([ModelEntry(provider, i, i) for i in written])]

    assert ids("x", "a-4.5", "a-5-20250101", "a-4.10", "a-5-latest") == [
        "a-5-latest", "a-5-20250101", "a-4.10", "a-4.5",
    ]  # fmt: skip
    assert ids("x", "k2", "k2-thinking") == ["k2-thinking", "k2"]
    assert ids("google", "gemini-3", "gemini-2-preview", "gemini-2-preview-customtools") == [
        "gemini-2-preview-customtools", "gemini-2-preview", "gemini-3",
    ]  # fmt: skip
    assert model_label(ModelEntry("x", "a-5", "A Five")) == "A Five (a-5)"


async def test_a_catalogue_that_cannot_be_read_leaves_three_defaults() -> None:
    class Broken(Catalog):
        def get_models(self, provider: str) -> list:  # type: ignore[type-arg]
            raise OSError("unreadable")

    async with models_of(catalog=Broken(), openai=Provider(api_key="k")) as models:
        found = await available_catalog(models)
    assert [entry.provider for entry in found] == ["anthropic", "openai", "google"]
    assert [len(entry.models) for entry in found] == [1, 1, 1]
