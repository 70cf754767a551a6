from __future__ import annotations

from urllib.parse import urlsplit

import anyio
import pytest

from lemon_agent import AbortSignal, AgentContext, AgentEvent, LoopConfig, run_loop
from lemon_agent.runtime import ModelRuntime
from lemon_agent.runtime.model_runtime import FIRST_MODEL_FRESH_MS
from lemon_agent.tests.harness import text_of, user
from lemon_ai import Client
from lemon_ai.errors import AIError
from lemon_ai.testing import FakeChatServer, Turn
from lemon_core.config.model import Defaults, Provider
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


def runtime_for(clock: FakeClock | None = None, **rows: Provider) -> ModelRuntime:
    return ModelRuntime(
        defaults=Defaults(), providers=rows, client=Client(env={}), clock=clock or FakeClock()
    )


async def ask(models: ModelRuntime) -> list[AgentEvent]:
    choice = await models.choose_model()
    config = LoopConfig(model=choice.model, stream_fn=models.stream, get_api_key=models.get_api_key)
    events: list[AgentEvent] = []
    await run_loop([user()], AgentContext(), config, AbortSignal(), events.append)
    return events


@pytest.mark.behaviour("lemon_agent.22")
async def test_a_local_server_answers_without_a_key() -> None:
    with anyio.fail_after(5):
        async with FakeChatServer([Turn(text="hello")], models=["qwen3:8b"]) as server:
            async with runtime_for(ollama=Provider(base_url=server.base_url)) as models:
                choice = await models.choose_model()
                assert (choice.spec, choice.notice) == ("ollama:qwen3:8b", None)
                events = await ask(models)
            assert events[-1].type == "agent_end"
            (request,) = server.requests
            assert request.body["model"] == "qwen3:8b"
            assert "authorization" not in request.headers


async def test_the_configured_key_goes_to_the_base_url_of_its_row() -> None:
    with anyio.fail_after(5):
        async with FakeChatServer([Turn(text="hello")], api_key="k1") as server:
            row = Provider(base_url=server.base_url, api_key="k1")
            async with runtime_for(openai=row) as models:
                events = await ask(models)
            assert events[-1].type == "agent_end"
            assert server.requests[0].headers["authorization"] == "Bearer k1"


async def test_the_first_model_of_a_server_is_asked_for_once_in_a_while() -> None:
    clock = FakeClock()
    with anyio.fail_after(5):
        async with runtime_for(clock, box=Provider(base_url="http://127.0.0.1:9/v1")) as models:
            with pytest.raises(AIError, match=r"127\.0\.0\.1:9"):
                await models.choose_model()
        async with FakeChatServer(models=["m1"]) as server:
            port = urlsplit(server.base_url).port or 0
            models = runtime_for(clock, box=Provider(base_url=server.base_url))
            assert (await models.choose_model()).spec == "box:m1"
        async with models, FakeChatServer(models=["m2"], port=port):
            assert (await models.choose_model()).spec == "box:m1"
            await clock.advance(FIRST_MODEL_FRESH_MS)
            assert (await models.choose_model()).spec == "box:m2"


async def test_a_refused_key_is_the_error_of_the_run_and_holds_no_key() -> None:
    with anyio.fail_after(5):
        async with FakeChatServer([Turn(text="hello")], api_key="k1") as server:
            row = Provider(base_url=server.base_url, api_key="wrong-canary", models=("m",))
            async with runtime_for(openai=row) as models:
                events = await ask(models)
    assert events[-1].type == "error"
    assert not any("wrong-canary" in repr(event) for event in events)


async def test_keys_are_given_by_provider() -> None:
    async with runtime_for(openai=Provider(api_key="k1")) as models:
        assert await models.get_api_key("openai") == "k1"
        assert await models.get_api_key("local") is None
        assert await models.get_api_key("nobody") is None


async def test_an_answer_streams_end_to_end_over_the_wire() -> None:
    with anyio.fail_after(5):
        async with (
            FakeChatServer([Turn(text="hello you")]) as server,
            runtime_for(box=Provider(base_url=server.base_url)) as models,
        ):
            events = await ask(models)
    (answer,) = [e.message for e in events if e.type == "message_end"][1:]
    assert text_of(answer) == "hello you"
