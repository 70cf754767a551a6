"""Asking a server for its first model."""

from __future__ import annotations

import pytest
from aiohttp import web

from lemon_ai import Client
from lemon_ai.discovery import ModelListError
from lemon_ai.testing import FakeChatServer
from lemon_ai.tests.support import serving

pytestmark = pytest.mark.anyio


async def test_the_key_goes_along(client: Client) -> None:
    async with FakeChatServer(models=("only",), api_key="sk-1") as fake:
        assert await client.first_model(fake.base_url, api_key="sk-1") == "only"
        with pytest.raises(ModelListError, match="HTTP 401"):
            await client.first_model(fake.base_url)


async def test_a_key_of_the_environment_stays_at_home() -> None:
    env = {"OPENAI_API_KEY": "sk-env", "OPENAI_BASE_URL": "https://elsewhere.example/v1"}
    async with FakeChatServer(api_key="sk-env") as fake, Client(env=env) as client:
        with pytest.raises(ModelListError, match="HTTP 401"):
            await client.first_model(fake.base_url)


@pytest.mark.parametrize("body", ['{"data": []}', '{"data": [{"id": ""}, 7]}', "[]", "<html>"])
async def test_a_server_without_models_is_a_clear_error(client: Client, body: str) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.Response(text=body)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with serving(app) as base_url:
        with pytest.raises(ModelListError, match=f"{base_url}/models gave none"):
            await client.first_model(base_url)


async def test_no_server_is_a_clear_error(client: Client) -> None:
    with pytest.raises(ModelListError, match="connection refused"):
        await client.first_model("http://127.0.0.1:1/v1")
