"""The scripted provider itself: keys, lists of models, probes, and what it puts on the wire."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from lemon_ai import Client, ModelError, StreamOptions, get_text
from lemon_ai.testing import FakeProviderServer, FakeUsage, RecordedRequest, Turn
from lemon_ai.testing.script import turn_from_json
from lemon_ai.tests.adapters.cases import CASES
from lemon_ai.tests.support import HELLO, all_events, final_message

pytestmark = pytest.mark.anyio


async def get(url: str, **options: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url, **options) as answer:
        return answer.status, await answer.json()


async def test_one_script_serves_every_api(client: Client) -> None:
    """A turn takes the form of the route that is called."""
    async with FakeProviderServer(default=Turn(text="same")) as server:
        for case in CASES:
            options = StreamOptions(api_key="sk-x")
            answer = await client.complete(case.model(server), HELLO, options)
            assert get_text(answer) == "same"
        assert [request.api for request in server.requests] == [case.api for case in CASES]
        assert {request.last_text for request in server.requests} == {"Say hello"}
        assert all(request.raw_body for request in server.requests)


async def test_each_api_carries_its_key_in_its_own_way(client: Client) -> None:
    async with FakeProviderServer(default=Turn(text="ok"), api_key="sk-x") as server:
        for case in CASES:
            with pytest.raises(ModelError, match="Incorrect API key"):
                await client.complete(case.model(server), HELLO, StreamOptions(api_key="wrong"))
            await client.complete(case.model(server), HELLO, StreamOptions(api_key="sk-x"))


async def test_rows_of_models_and_probes() -> None:
    def show(request: RecordedRequest) -> object:
        return {"model": request.query["model"]} if "model" in request.query else None

    models = ("plain", {"id": "wide", "max_model_len": 32_768})
    async with FakeProviderServer(models=models, probes={"/props": show}) as server:
        server.probes["/api/ps"] = {"models": []}
        _, listed = await get(f"{server.origin}/v1/models")
        assert [row["id"] for row in listed["data"]] == ["plain", "wide"]
        assert listed["data"][1]["max_model_len"] == 32_768
        assert await get(f"{server.origin}/api/ps") == (200, {"models": []})
        assert await get(f"{server.origin}/props?model=m") == (200, {"model": "m"})
        assert (await get(f"{server.origin}/props"))[0] == 404
        assert (await get(f"{server.origin}/nowhere"))[0] == 404
        assert [request.path for request in server.probed][:2] == ["/v1/models", "/api/ps"]
        assert server.requests == []


@pytest.mark.parametrize("limit", [0, 1, 150])
async def test_a_connection_is_cut_after_so_many_bytes(client: Client, limit: int) -> None:
    case = CASES[0]
    turn = Turn(text="a few words", disconnect_after_bytes=limit)
    async with FakeProviderServer(default=turn) as server:
        events = await all_events(client, case.model(server), HELLO)
    message = final_message(events)
    assert message.stop_reason == "error"
    assert get_text(message) == ""


def test_neutral_usage_from_a_file() -> None:
    turn = turn_from_json({"text": "t", "fake_usage": {"input": 1, "output": 2, "cache_read": 3}})
    assert turn.usage == FakeUsage(input=1, output=2, cache_read=3)
