"""What servers say of their models, and what becomes of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest

from lemon_ai import Catalog, Client, Model, ModelCost
from lemon_ai.discovery import Discovery
from lemon_ai.model_cache import ModelCache
from lemon_ai.testing import FakeProviderServer, RecordedRequest, Turn
from lemon_ai.tests.support import HELLO, TOOL_CONTEXT, chat_model
from lemon_ai.transport import Transport

pytestmark = pytest.mark.anyio
Row = Mapping[str, Any]


class Ticking:
    """Milliseconds that the test moves."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms


async def discovered(
    client: Client,
    provider: str,
    models: Sequence[str | Row],
    probes: Mapping[str, Any],
    **given: str,
) -> dict[str, Model]:
    """The models of a server with this list and these documents, by id."""
    async with FakeProviderServer(models=models, probes=probes) as server:
        base_url = f"{server.origin}/v1"
        found = await client.discover(Catalog(), provider, base_url=base_url, **given)
        assert all(model.base_url == base_url for model in found)
        assert all(model.api == "openai_completions" for model in found)
        return {model.id: model for model in found}


@pytest.mark.behaviour("lemon_ai.20")
async def test_vllm_tells_the_window_in_its_list(client: Client) -> None:
    rows: list[Row] = [{"id": "a", "max_model_len": 32_768}, {"id": "b"}]
    found = await discovered(client, "vllm", rows, {})
    assert found["a"].context_window == 32_768
    assert found["a"].cost == ModelCost()
    assert found["b"].context_window == 8_192


@pytest.mark.behaviour("lemon_ai.20")
async def test_lm_studio_tells_the_window_that_was_loaded(client: Client) -> None:
    loaded = {"id": "x", "config": {"context_length": 16_000}}
    document = {
        "models": [
            {
                "type": "llm",
                "key": "a",
                "display_name": "A",
                "loaded_instances": [loaded],
                "max_context_length": 131_072,
                "capabilities": {"vision": True, "trained_for_tool_use": False},
            },
            {"type": "llm", "key": "b", "loaded_instances": [], "max_context_length": 65_536},
            {"type": "embedding", "key": "c"},
        ]
    }
    found = await discovered(client, "lm_studio", ["a", "b", "c"], {"/api/v1/models": document})
    assert list(found) == ["a", "b"]
    assert (found["a"].context_window, found["a"].name) == (16_000, "A")
    assert (found["a"].input, found["a"].tools) == (("text", "image"), False)
    assert (found["b"].context_window, found["b"].tools) == (65_536, True)


@pytest.mark.behaviour("lemon_ai.20")
async def test_lm_studio_before_0_4(client: Client) -> None:
    rows = [
        {"id": "a", "type": "vlm", "loaded_context_length": 4_096, "max_context_length": 32_768},
        {"id": "b", "type": "llm", "max_context_length": 32_768},
        {"id": "c", "type": "embeddings"},
    ]
    found = await discovered(client, "lm_studio", ["a"], {"/api/v0/models": {"data": rows}})
    assert {name: model.context_window for name, model in found.items()} == {
        "a": 4_096,
        "b": 32_768,
    }
    assert found["a"].input == ("text", "image")


@pytest.mark.behaviour("lemon_ai.20")
async def test_llama_cpp_tells_the_window_of_a_slot(client: Client) -> None:
    props = {"default_generation_settings": {"n_ctx": 12_288}, "modalities": {"vision": True}}
    found = await discovered(client, "llama_cpp", ["a"], {"/props": props})
    assert (found["a"].context_window, found["a"].input) == (12_288, ("text", "image"))


@pytest.mark.behaviour("lemon_ai.20")
async def test_a_llama_cpp_router_is_asked_for_each_model(client: Client) -> None:
    windows = {"org/a": 8_000, "b": 9_000}

    def props(request: RecordedRequest) -> object:
        window = windows.get(request.query.get("model", ""), 0)
        return {"default_generation_settings": {"n_ctx": window}}

    found = await discovered(client, "llama_cpp", ["org/a", "b", "c"], {"/props": props})
    assert {name: model.context_window for name, model in found.items()} == {
        "org/a": 8_000,
        "b": 9_000,
        "c": 8_192,
    }


@pytest.mark.behaviour("lemon_ai.20")
async def test_ollama_tells_what_is_allocated_else_what_is_possible(client: Client) -> None:
    def show(request: RecordedRequest) -> object:
        if request.body["model"] == "broken":
            return None
        info = {"general.architecture": "qwen3", "qwen3.context_length": 40_960}
        return {"model_info": info, "capabilities": ["completion", "tools", "thinking"]}

    probes = {
        "/api/ps": {"models": [{"name": "run:8b", "model": "run:8b", "context_length": 4_096}]},
        "/api/show": show,
    }
    found = await discovered(client, "ollama", ["run:8b", "idle:8b", "broken"], probes)
    assert {name: model.context_window for name, model in found.items()} == {
        "run:8b": 4_096,
        "idle:8b": 40_960,
        "broken": 8_192,
    }
    assert (found["idle:8b"].tools, found["idle:8b"].reasoning) == (True, True)
    assert (found["broken"].tools, found["broken"].reasoning) == (True, False)
    assert found["run:8b"].max_tokens == 4_096


@pytest.mark.behaviour("lemon_ai.20")
async def test_a_server_of_the_users_own_is_known_by_its_program(client: Client) -> None:
    props = {"default_generation_settings": {"n_ctx": 7_000}}
    rows = [{"id": "a", "owned_by": "llamacpp"}]
    found = await discovered(client, "my_box", rows, {"/props": props}, api_key="k")
    assert found["a"].context_window == 7_000
    assert found["a"].cost is None  # somebody may ask for money there
    plain = await discovered(client, "my_box", [{"id": "b", "context_length": 5_000}], {})
    assert plain["b"].context_window == 5_000


async def test_a_key_goes_along_to_the_server(client: Client) -> None:
    async with FakeProviderServer(models=["a"], api_key="k") as server:
        base_url = f"{server.origin}/v1"
        catalog = Catalog()
        assert await client.discover(catalog, "vllm", base_url=base_url) == []
        found = await client.discover(catalog, "vllm", base_url=base_url, api_key="k")
        assert [model.id for model in found] == ["a"]


async def aggregated(catalog: Catalog, provider: str, rows: Sequence[Row]) -> list[Model]:
    """The provider's models when its own host answers with these rows."""
    row = catalog.get_models(provider)[0]
    discovery = Discovery(Listing({"data": rows}))
    return await discovery.models(catalog, provider, row.base_url, None)


class Listing(Transport):
    """Answers every question with one document; hosts of vendors cannot be had in a test."""

    def __init__(self, document: object, status: int = 200) -> None:
        super().__init__(env={})
        self.document, self.status = document, status
        self.asked: list[str] = []

    async def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        self.asked.append(url)
        return self.status, self.document


async def test_openrouter_completes_the_list_with_windows_and_prices() -> None:
    catalog = Catalog()
    known = catalog.get_models("openrouter")
    rows: list[Row] = [
        {
            "id": "new/model",
            "name": "New",
            "context_length": 200_000,
            "architecture": {"input_modalities": ["text", "image"], "output_modalities": ["text"]},
            "pricing": {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "3e-7"},
            "top_provider": {"max_completion_tokens": 64_000},
            "supported_parameters": ["tools", "reasoning"],
        },
        {"id": "auto", "pricing": {"prompt": "-1", "completion": "-1"}},
        {"id": "free", "pricing": {"prompt": "0", "completion": "0"}, "supported_parameters": []},
        {"id": "paints", "architecture": {"output_modalities": ["image"]}},
        {"id": known[0].id, "context_length": 123_456},
    ]
    found = await aggregated(catalog, "openrouter", rows)
    assert [m.id for m in found] == [*(m.id for m in known), "new/model", "auto", "free"]
    by_id = {model.id: model for model in found}
    new = by_id["new/model"]
    assert new.cost == ModelCost(input=3, output=15, cache_read=0.3, cache_write=3)
    assert (new.context_window, new.max_tokens) == (200_000, 64_000)
    assert (new.input, new.reasoning, new.tools) == (("text", "image"), True, True)
    assert by_id["auto"].cost is None
    assert by_id["free"].cost == ModelCost()
    assert not by_id["free"].tools
    assert by_id[known[0].id].context_window == 123_456
    assert by_id[known[0].id].cost == known[0].cost
    assert by_id[known[1].id] == known[1]


async def test_vercel_completes_the_list_at_the_place_where_it_is() -> None:
    catalog = Catalog()
    row = {
        "id": "lab/model",
        "type": "language",
        "context_window": 64_000,
        "max_tokens": 8_000,
        "tags": ["vision", "reasoning"],
        "pricing": {"input": "0.000001", "output": "0.000002"},
    }
    transport = Listing({"data": [row, {"id": "lab/embed", "type": "embedding"}]})
    found = await Discovery(transport).models(
        catalog, "vercel_ai_gateway", "https://ai-gateway.vercel.sh", None
    )
    assert transport.asked == ["https://ai-gateway.vercel.sh/v1/models"]
    new = found[-1]
    assert (new.id, new.api) == ("lab/model", "anthropic_messages")
    assert new.cost == ModelCost(input=1, output=2, cache_read=1, cache_write=1)
    assert (new.input, new.reasoning, new.tools) == (("text", "image"), True, False)


async def test_openais_live_ids_filter_the_rows() -> None:
    catalog = Catalog()
    live = [{"id": "gpt-5.1"}, {"id": "whisper-1"}, {"id": "gpt-6-luna"}]
    found = await aggregated(catalog, "openai", live)
    assert [model.id for model in found] == ["gpt-6-luna", "gpt-5.1"]
    assert found[0] == catalog.default_model("openai")


@pytest.mark.behaviour("lemon_ai.20")
@pytest.mark.parametrize("provider", ["openai", "openrouter", "xai", "ollama"])
@pytest.mark.parametrize("document", [None, [], {"data": []}, {"data": [{"id": 7}]}, "<html>"])
async def test_an_answer_of_no_use_leaves_the_rows(provider: str, document: object) -> None:
    catalog = Catalog()
    for status in (200, 500):
        discovery = Discovery(Listing(document, status))
        where = "https://api.openai.com/v1" if provider == "openai" else "http://127.0.0.1:9/v1"
        assert await discovery.models(catalog, provider, where, None) == catalog.get_models(
            provider
        )


@pytest.mark.behaviour("lemon_ai.20")
async def test_a_server_that_is_not_there_leaves_the_rows(client: Client) -> None:
    catalog = Catalog()
    mine = chat_model("http://127.0.0.1:1/v1", provider="mine")
    catalog.register_models("mine", [mine])
    assert await client.discover(catalog, "mine") == [mine]


@pytest.mark.behaviour("lemon_ai.20")
async def test_a_server_that_is_slow_leaves_the_rows_or_what_it_said_in_time() -> None:
    class Slow(Listing):
        async def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[int, Any]:
            if self.document is None or url.endswith("/props"):
                await anyio.sleep_forever()
            return await super().get_json(url, headers)

    where = "http://127.0.0.1:8080/v1"
    with anyio.fail_after(5):
        nothing = Discovery(Slow(None), timeout_s=0)
        assert await nothing.models(Catalog(), "llama_cpp", where, None) == []
        listed = Discovery(Slow({"data": [{"id": "a"}]}), timeout_s=0)
        (model,) = await listed.models(Catalog(), "llama_cpp", where, None)
        assert (model.id, model.context_window) == ("a", 8_192)


async def test_an_answer_is_believed_for_five_minutes() -> None:
    clock = Ticking()
    transport = Listing({"data": [{"id": "a"}]})
    cache = ModelCache(now_ms=clock)
    discovery, catalog = Discovery(transport, cache), Catalog()
    where = "http://127.0.0.1:8000/v1"
    for ms, asked in ((0, 1), (299_999, 1), (300_000, 2)):
        clock.ms = ms
        await discovery.models(catalog, "vllm", where, None)
        assert len(transport.asked) == asked
    assert cache.stats().entries == cache.stats().fresh == 1
    entry = cache.read(f"vllm at {where}")
    assert entry is not None
    assert (entry.authoritative, entry.updated_at) == (True, 300_000)
    cache.invalidate(f"vllm at {where}")
    await discovery.models(catalog, "vllm", where, None)
    cache.invalidate_all()
    await discovery.models(catalog, "vllm", where, None)
    assert len(transport.asked) == 4
    clock.ms = 900_000
    assert cache.read(f"vllm at {where}") is None
    assert (cache.stats().hits, cache.stats().fresh) == (2, 0)


async def test_all_models_with_some_providers_asked(client: Client) -> None:
    catalog = Catalog()
    async with FakeProviderServer(models=[{"id": "a", "max_model_len": 5_000}]) as server:
        base_url = f"{server.origin}/v1"
        env = {"VLLM_BASE_URL": base_url}
        async with Client(env=env, transport=Transport(env={})) as asking:
            found = await asking.list_models(catalog, discover=["vllm"])
    providers = list(dict.fromkeys(model.provider for model in found))
    assert providers == [p for p in catalog.get_providers() if catalog.get_models(p) or p == "vllm"]
    mine = next(model for model in found if model.provider == "vllm")
    assert (mine.id, mine.base_url, mine.context_window) == ("a", base_url, 5_000)
    assert "vllm" not in {model.provider for model in await client.list_models(catalog)}


@pytest.mark.behaviour("lemon_ai.20")
async def test_an_unknown_model_of_a_local_server_answers_without_a_key(client: Client) -> None:
    async with FakeProviderServer([Turn(text="hi"), Turn(text="hi")]) as server:
        model = Catalog().endpoint_model("ollama", "mystery:3b", f"{server.origin}/v1")
        answer = await client.complete(model, HELLO)
        assert answer.usage is not None
        assert answer.usage.cost is not None
        assert answer.usage.cost.total == 0
        await client.complete(model.model_copy(update={"tools": False}), TOOL_CONTEXT)
        first, second = server.requests
        assert (first.api, first.body["model"]) == ("openai_completions", "mystery:3b")
        assert "authorization" not in first.headers
        assert "tools" not in second.body
