"""Routing and failover through `ModelRuntime`, over servers that speak the real wire format."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import SecretStr

from lemon_agent import AbortSignal, AgentContext, AgentEvent, LoopConfig, ModelSwitched, run_loop
from lemon_agent.runtime import ModelRuntime, ModelSettings
from lemon_agent.runtime.health import PROBE_MS
from lemon_agent.tests.harness import user
from lemon_ai import (
    AssistantMessage,
    Client,
    Context,
    ModelError,
    StreamCanceled,
    StreamOptions,
    get_text,
)
from lemon_ai.testing import FakeChatServer, HttpError, Turn
from lemon_ai.transport import Transport
from lemon_core.config.model import Provider
from lemon_core.config.provider_routing import ProviderRouting
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

DAY_S = 86_400
KEYS = {f"K{n}": f"key-{n}" for n in range(5)}
CONTEXT = Context(messages=(user(),))


@dataclass
class Scene:
    """Provider `one` with `two` behind it; `slept` are the pauses of the transport in seconds."""

    one: FakeChatServer
    two: FakeChatServer
    models: ModelRuntime
    client: Client
    clock: FakeClock
    slept: list[float]

    async def ask(self, session: str | None = "s1") -> AssistantMessage:
        choice = await self.models.choose_model("one:m1")
        key = await self.models.get_api_key(choice.model.provider)  # as the loop does
        options = StreamOptions(session_id=session, api_key=None if key is None else SecretStr(key))
        async with self.models.stream(choice.model, CONTEXT, options) as stream:
            return await stream.result()

    async def run(self) -> list[AgentEvent]:
        choice = await self.models.choose_model("one:m1")
        config = LoopConfig(
            model=choice.model,
            stream_fn=self.models.stream,
            get_api_key=self.models.get_api_key,
            stream_options=StreamOptions(session_id="s1"),
        )
        events: list[AgentEvent] = []
        await run_loop([user()], AgentContext(), config, AbortSignal(), events.append)
        return events


def keys_asked(server: FakeChatServer) -> list[str]:
    heads = [r.headers.get("authorization", "") for r in server.requests]
    return list(dict.fromkeys(head.removeprefix("Bearer ") for head in heads))


@asynccontextmanager
async def scene(
    one: FakeChatServer,
    two: FakeChatServer | None = None,
    stand_in: Provider | None = None,
    **routing: Any,
) -> AsyncIterator[Scene]:
    clock, slept = FakeClock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await anyio.lowlevel.checkpoint()

    with anyio.fail_after(5):
        async with one, two or FakeChatServer() as second:
            transport = Transport(env={}, sleep=sleep)
            settings = ModelSettings(
                providers={
                    "one": Provider(base_url=one.base_url, models=("m1",)),
                    "two": stand_in or Provider(base_url=second.base_url, models=("m2",)),
                },
                routing=ProviderRouting.model_validate(routing or {"fallback_providers": ["two"]}),
                environ=KEYS,
            )
            client = Client(env={}, transport=transport)
            async with ModelRuntime(
                settings=lambda: settings, client=client, clock=clock
            ) as models:
                yield Scene(one, second, models, client, clock, slept)


@pytest.mark.behaviour("lemon_agent.102")
@pytest.mark.parametrize("hint", [None, "30"])
async def test_an_overloaded_provider_gives_way_after_a_short_time(hint: str | None) -> None:
    headers = {} if hint is None else {"retry-after": hint}
    down = Turn(http_error=HttpError(529, message="overloaded", headers=headers))
    async with scene(FakeChatServer(default=down), FakeChatServer([Turn(text="hello")])) as s:
        message = await s.ask()
        assert (get_text(message), message.provider, message.model) == ("hello", "two", "m2")
        assert sum(s.slept) < 4
        rest = 30_000 if hint else 2_000
        await s.clock.advance(rest - 1)
        assert s.models.health.rests("one", "default")
        await s.clock.advance(1)
        assert not s.models.health.rests("one", "default")


@pytest.mark.behaviour("lemon_agent.102")
async def test_the_wish_for_a_wait_is_told_when_nobody_answers() -> None:
    down = Turn(http_error=HttpError(529, message="overloaded", headers={"retry-after": "90"}))
    async with scene(FakeChatServer(default=down), FakeChatServer(default=down)) as s:
        with pytest.raises(ModelError) as caught:
            await s.ask()
    limits = caught.value.info().rate_limit_info
    assert limits is not None
    assert limits.retry_after_ms == 90_000


@pytest.mark.behaviour("lemon_agent.102")
async def test_every_key_of_a_pool_is_tried() -> None:
    limited = Turn(http_error=HttpError(429, headers={"retry-after": "20"}))
    refs = [f"env:K{n}" for n in range(5)]
    async with scene(
        FakeChatServer([*[limited] * 4, Turn(text="at last")]),
        default_pool="team",
        credential_pools={"team": {"credentials": {"one": refs}}},
    ) as s:
        assert get_text(await s.ask()) == "at last"
        assert keys_asked(s.one) == [f"key-{n}" for n in range(5)]
        assert s.slept == []
        assert [s.models.health.rests("one", ref) for ref in refs] == [True] * 4 + [False]


@pytest.mark.behaviour("lemon_agent.102")
async def test_the_reply_says_which_model_answered() -> None:
    down = Turn(http_error=HttpError(503))
    two = FakeChatServer([Turn(text="hello"), Turn(http_error=HttpError(401))])
    async with scene(FakeChatServer([*[down] * 4, Turn(text="back")]), two) as s:
        events = await s.run()
        (switched,) = [e for e in events if isinstance(e, ModelSwitched)]
        assert (switched.asked, switched.answered) == ("one:m1", "two:m2")
        assert switched.notice == "one:m1 did not answer: this is from two:m2"
        kinds = [e.type for e in events]
        assert kinds.index("model_switched") < kinds.index("message_end", 6)
        # What stood in fails: the first one answers again, and nothing needs to be said.
        again = await s.run()
        assert not [e for e in again if isinstance(e, ModelSwitched)]
        assert again[-1].type == "agent_end"


@pytest.mark.behaviour("lemon_agent.103")
async def test_a_refusal_by_the_stand_in_does_not_keep_the_primary_out() -> None:
    broken = Turn(http_error=HttpError(500))
    limited = Turn(http_error=HttpError(429, headers={"retry-after": str(DAY_S)}))
    one = FakeChatServer([*[broken] * 4], default=Turn(text="works"))
    async with scene(one, FakeChatServer(default=limited)) as s:
        with pytest.raises(ModelError):
            await s.ask()
        # State is kept for each provider and key.
        assert s.models.health.rests("two", "default")
        assert get_text(await s.ask()) == "works"
        assert not s.models.health.rests("one", "default")
        assert s.models.health.rests("two", "default")
        assert len(s.two.requests) == 1


@pytest.mark.behaviour("lemon_agent.103")
async def test_a_long_rest_is_probed_now_and_then() -> None:
    limited = Turn(http_error=HttpError(429, headers={"retry-after": str(DAY_S)}))
    one = FakeChatServer([limited], default=Turn(text="a"))
    async with scene(
        one,
        default_pool="team",
        credential_pools={"team": {"credentials": {"one": ["env:K0", "env:K1"]}}},
    ) as s:
        await s.ask(None)
        assert keys_asked(s.one) == ["key-0", "key-1"]
        await s.clock.advance(PROBE_MS - 1)
        await s.ask(None)
        assert s.one.requests[-1].headers["authorization"] == "Bearer key-1"
        await s.clock.advance(1)
        assert get_text(await s.ask(None)) == "a"
        assert s.one.requests[-1].headers["authorization"] == "Bearer key-0"
        assert not s.models.health.rests("one", "env:K0")


@pytest.mark.behaviour("lemon_agent.20")
async def test_a_provider_that_fails_too_often_is_asked_last() -> None:
    async with scene(FakeChatServer(), FakeChatServer(default=Turn(text="two"))) as s:
        found = await s.models.plan({"provider": "one"})
        assert [c.provider for c in found.candidates] == ["one", "two"]
        name = s.client.admission_name((await s.models.choose_model("one:m1")).model)
        failed = StreamCanceled("timeout", AssistantMessage())
        for _ in range(5):
            s.client.admission.enter(name)(failed)
        found = await s.models.plan({"provider": "one"})
        assert [(c.provider, c.demotions) for c in found.candidates] == [
            ("two", ()),
            ("one", ("circuit_open",)),
        ]
        assert get_text(await s.ask(None)) == "two"
        assert s.one.requests == []


async def test_without_routing_a_call_goes_straight_to_the_client() -> None:
    down = Turn(http_error=HttpError(401))
    async with scene(FakeChatServer([down]), enabled=False, fallback_providers=["two"]) as s:
        with pytest.raises(ModelError):
            await s.ask()
        assert s.two.requests == []
        assert not s.models.health.rests("one", "default")


async def test_the_same_model_is_preferred_where_the_stand_in_has_it() -> None:
    two = FakeChatServer([Turn(text="hello")])
    async with two:
        other = Provider(base_url=two.base_url, models=("other", "m1"))
        async with scene(
            FakeChatServer(default=Turn(http_error=HttpError(503))), stand_in=other
        ) as s:
            assert (await s.ask()).model == "m1"


async def test_a_stand_in_that_does_not_say_what_it_has_is_passed_over() -> None:
    silent = Provider(base_url="http://127.0.0.1:9/v1")
    async with scene(FakeChatServer(default=Turn(text="one")), stand_in=silent) as s:
        assert get_text(await s.ask()) == "one"


async def test_every_key_of_a_pool_carries_the_providers_settings() -> None:
    routing = ProviderRouting.model_validate(
        {
            "default_pool": "team",
            "credential_pools": {"team": {"credentials": {"azure-openai": ["env:K0", "env:K1"]}}},
        }
    )
    row = Provider(resource_name="r", deployment_name_map={"m": "d"})
    settings = ModelSettings(
        providers={"azure_openai_responses": row}, routing=routing, environ=KEYS
    )
    models = ModelRuntime(settings=lambda: settings, client=Client(env={}))
    found = await models.credentials.list_api_keys("azure-openai")
    assert [c.ref for c in found] == ["env:K0", "env:K1", "default"]
    assert {c.options["resource_name"] for c in found} == {"r"}
    assert await models.credentials.has_credentials("azure-openai")


async def test_calls_without_a_session_take_turns() -> None:
    refs = ["env:K0", "env:K1", "env:K2"]
    team = {"credentials": {"one": refs}, "strategy": "round_robin"}
    async with scene(
        FakeChatServer(default=Turn(text="x")),
        default_pool="team",
        credential_pools={"team": team},
    ) as s:
        for _ in range(4):
            await s.ask(None)
        heads = [r.headers["authorization"].removeprefix("Bearer ") for r in s.one.requests]
    assert heads == ["key-0", "key-1", "key-2", "key-0"]
