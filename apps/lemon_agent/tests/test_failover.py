"""Failover over two fake servers that speak the real wire format."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby

import anyio
import anyio.lowlevel
import pytest
from pydantic import SecretStr

from lemon_agent.failover import with_failover
from lemon_agent.runtime import Credential
from lemon_agent.runtime.health import CredentialHealth, Pin, SessionPins
from lemon_agent.types import StreamFn
from lemon_ai import (
    AssistantMessage,
    Client,
    Context,
    Event,
    Model,
    ModelCanceled,
    ModelError,
    StreamOptions,
    UserMessage,
    get_text,
)
from lemon_ai.testing import FakeChatServer, HttpError, Turn
from lemon_ai.transport import Transport
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

CONTEXT = Context(messages=(UserMessage(content="hi"),))
DOWN = HttpError(503)
BAD_KEY = HttpError(401)
SESSION = "s1"


@dataclass
class Scene:
    """Two providers, `one` before `two`, and everything the failover remembers."""

    one: FakeChatServer
    two: FakeChatServer
    client: Client
    clock: FakeClock = field(default_factory=FakeClock)
    keys: dict[str, list[Credential]] = field(default_factory=dict)
    session: str | None = SESSION

    def __post_init__(self) -> None:
        self.health, self.pins = CredentialHealth(self.clock), SessionPins(self.clock)
        self.models = [self.model("one", self.one), self.model("two", self.two)]

    @staticmethod
    def model(provider: str, server: FakeChatServer) -> Model:
        return Model(
            id=f"model-{provider}",
            api="openai_completions",
            provider=provider,
            base_url=server.base_url,
            context_window=8_000,
            max_tokens=100,
        )

    async def candidates(self, model: Model) -> Sequence[Model]:
        return [model, *(m for m in self.models if m.provider != model.provider)]

    async def credentials(self, provider: str) -> Sequence[Credential]:
        return self.keys.get(provider, [])

    @property
    def stream(self) -> StreamFn:
        return with_failover(
            self.client.stream,
            self.candidates,
            self.credentials,
            health=self.health,
            pins=self.pins,
            session_id=self.session,
        )

    async def ask(self, model: Model | None = None) -> AssistantMessage:
        with anyio.fail_after(5):
            async with self.stream(model or self.models[0], CONTEXT, StreamOptions()) as events:
                return await events.result()

    def asked(self) -> tuple[list[str | None], list[str | None]]:
        """The keys that each server was asked with."""
        return _keys(self.one), _keys(self.two)


def _keys(server: FakeChatServer) -> list[str | None]:
    """The keys in the order of asking; the transport's own retries are not the subject here."""
    heads = (request.headers.get("authorization") for request in server.requests)
    keys = [None if head is None else head.removeprefix("Bearer ") for head in heads]
    return [key for key, _ in groupby(keys)]


def _server(turns: Sequence[Turn]) -> FakeChatServer:
    """A server; one whose last turn is an outage stays down."""
    last = turns[-1] if turns else None
    if last is not None and last.http_error is not None and last.http_error.status == 503:
        return FakeChatServer(turns[:-1], default=last)
    return FakeChatServer(turns)


async def _at_once(_: float) -> None:
    await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def scene(one: Sequence[Turn] = (), two: Sequence[Turn] = ()) -> AsyncIterator[Scene]:
    transport = Transport(env={}, sleep=_at_once)
    async with (
        _server(one) as first,
        _server(two) as second,
        Client(env={}, transport=transport) as client,
    ):
        yield Scene(first, second, client)


def keys(*names: str) -> list[Credential]:
    return [Credential(name, f"key-{name}") for name in names]


@pytest.mark.behaviour("lemon_agent.21")
async def test_a_refused_key_gives_way_to_the_next_one() -> None:
    async with scene([Turn(http_error=BAD_KEY), Turn(text="hello")]) as s:
        s.keys = {"one": keys("a", "b")}
        message = await s.ask()
        assert (get_text(message), message.provider) == ("hello", "one")
        assert s.asked() == (["key-a", "key-b"], [])
        assert s.health.rests("one", "a")
        assert s.pins.get(SESSION) == Pin("one", "b")


@pytest.mark.behaviour("lemon_agent.21")
async def test_a_server_that_is_down_gives_way_to_the_next_provider() -> None:
    async with scene([Turn(http_error=DOWN)], [Turn(text="hello"), Turn(text="again")]) as s:
        s.keys = {"one": keys("a", "b"), "two": keys("c")}
        message = await s.ask()
        assert (get_text(message), message.provider, message.model) == (
            "hello", "two", "model-two",
        )  # fmt: skip
        # The pin leads in the next turn: nobody asks the first provider again.
        assert s.pins.get(SESSION) == Pin("two", "c")
        await s.ask()
        assert s.asked() == (["key-a"], ["key-c"])
        assert len(s.two.requests) == 2


@pytest.mark.behaviour("lemon_agent.21")
@pytest.mark.parametrize(
    "error", [HttpError(400), HttpError(400, message="maximum context length is 10 tokens")]
)
async def test_a_request_at_fault_is_not_sent_elsewhere(error: HttpError) -> None:
    async with scene([Turn(http_error=error)], [Turn(text="never")]) as s:
        with pytest.raises(ModelError):
            await s.ask()
        assert s.asked() == ([None], [])
        assert not s.health.rests("one", "default")


@pytest.mark.behaviour("lemon_agent.21")
async def test_nothing_fails_over_once_the_answer_has_begun() -> None:
    broken = Turn(text=["half ", "of it"], disconnect=True)
    async with scene([broken], [Turn(text="never")]) as s:
        with pytest.raises(ModelError) as caught:
            await s.ask()
        assert get_text(caught.value.message) == "half of it"
        assert s.asked() == ([None], [])


@pytest.mark.behaviour("lemon_agent.21")
async def test_a_failure_of_the_pinned_one_clears_the_pin() -> None:
    async with scene([Turn(text="primary")], [Turn(http_error=DOWN)]) as s:
        s.pins.set(SESSION, Pin("two", "default"))
        assert get_text(await s.ask()) == "primary"
        assert s.pins.get(SESSION) is None
        assert s.asked() == ([None], [None])


@pytest.mark.behaviour("lemon_agent.21")
async def test_a_switch_of_the_model_is_honoured_in_mid_session() -> None:
    async with scene([Turn(text="one")], [Turn(text="two")]) as s:
        assert (await s.ask()).provider == "one"
        assert (await s.ask(s.models[1])).provider == "two"
        assert s.pins.get(SESSION) is None


@pytest.mark.behaviour("lemon_agent.21")
async def test_a_consumer_that_leaves_closes_the_socket_and_teaches_nothing() -> None:
    waiting = Turn(text=[" ", "never"], gate="g", gate_after=1)
    async with scene([waiting], [Turn(text="never")]) as s:
        with anyio.fail_after(5):
            async with (
                s.stream(s.models[0], CONTEXT, StreamOptions()) as events,
                anyio.create_task_group() as tasks,
            ):

                async def read() -> None:
                    with pytest.raises(ModelCanceled):
                        await events.result()

                tasks.start_soon(read)
                await s.one.gate("g").reached.wait()
                events.cancel("aborted")
            s.one.gate("g").open()
            await s.one.wait_idle()
        assert not s.health.rests("one", "default")
        assert s.pins.get(SESSION) is None
        assert s.two.requests == []


async def test_an_answer_of_nothing_is_a_failure() -> None:
    async with scene([Turn(text=[" ", "\n"])], [Turn(text="hello")]) as s:
        assert get_text(await s.ask()) == "hello"
    async with scene([Turn(text="")], [Turn(text="")]) as s:
        with pytest.raises(ModelError, match="answered with nothing"):
            await s.ask()


async def test_when_all_fail_the_last_error_is_told() -> None:
    last = HttpError(503, message="the second is down")
    async with scene([Turn(http_error=DOWN)], [Turn(http_error=last)]) as s:
        with pytest.raises(ModelError, match="the second is down"):
            await s.ask()


async def test_a_stream_that_switched_has_one_start_and_one_end() -> None:
    async with scene([Turn(http_error=DOWN)], [Turn(text=["a ", "b"])]) as s:
        seen: list[Event] = []
        with anyio.fail_after(5):
            async with s.stream(s.models[0], CONTEXT, StreamOptions()) as events:
                async for event in events:
                    seen.append(event)
                assert events.partial.model.provider == "two"
    kinds = [event.type for event in seen]
    assert kinds == ["start", "text_start", "text_delta", "text_delta", "text_end", "done"]


async def test_a_key_that_came_along_stays_with_its_provider() -> None:
    async with scene([Turn(http_error=DOWN)], [Turn(text="hello")]) as s:
        options = StreamOptions(api_key=SecretStr("mine"))
        with anyio.fail_after(5):
            async with s.stream(s.models[0], CONTEXT, options) as events:
                await events.result()
        assert s.asked() == (["mine"], [None])


async def test_resting_keys_are_passed_over() -> None:
    async with scene([Turn(text="hello")]) as s:
        s.keys = {"one": keys("a", "b")}
        refused = AssistantMessage(error_message="401 invalid api key", stop_reason="error")
        s.health.failed("one", "a", refused)
        await s.ask()
        assert s.asked() == (["key-b"], [])
