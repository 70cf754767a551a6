"""The client end to end against the scripted server: retries, errors, requests, ownership."""

from __future__ import annotations

import gzip

import anyio
import pytest
from aiohttp import web

from lemon_ai import (
    Catalog,
    Client,
    Context,
    ModelError,
    StreamDone,
    StreamError,
    StreamOptions,
    UnknownApiError,
    UserMessage,
    complete,
    get_text,
    stream,
)
from lemon_ai.testing import FakeChatServer, HttpError, ScriptedAdapter, Turn, scripted_model
from lemon_ai.tests.support import (
    HELLO,
    TOOL_CONTEXT,
    Sleeps,
    all_events,
    chat_model,
    serving,
    wire,
)
from lemon_ai.tests.support import delta as chunk

pytestmark = pytest.mark.anyio

BUSY = Turn(http_error=HttpError(429, {"error": {"message": "slow down"}}, {"retry-after": "0.2"}))


@pytest.mark.behaviour("lemon_ai.10")
async def test_429_then_200_retries_once_after_the_hint(
    server: FakeChatServer, client: Client, sleeps: Sleeps
) -> None:
    server.enqueue(BUSY, Turn(text="ok"))
    assert get_text(await client.complete(chat_model(server.base_url), HELLO)) == "ok"
    assert sleeps.seconds == [pytest.approx(1.2)]  # the hint and one second
    assert len(server.requests) == 2
    assert server.requests[0].body == server.requests[1].body


@pytest.mark.behaviour("lemon_ai.10")
async def test_a_long_hint_fails_at_once_with_the_hint(
    server: FakeChatServer, client: Client, sleeps: Sleeps
) -> None:
    server.enqueue(Turn(http_error=HttpError(429, "", {"retry-after": "3600"})))
    with pytest.raises(ModelError) as caught:
        await client.complete(chat_model(server.base_url), HELLO)
    assert sleeps.seconds == []
    error = caught.value.message.error
    assert error is not None
    assert error.rate_limit_info is not None
    assert error.rate_limit_info.retry_after_ms == 3_600_000


@pytest.mark.behaviour("lemon_ai.10")
async def test_400_is_never_retried(server: FakeChatServer, client: Client, sleeps: Sleeps) -> None:
    server.enqueue(Turn(http_error=HttpError(400, {"error": {"message": "bad field"}})))
    with pytest.raises(ModelError, match=r"request refused \(HTTP 400\): bad field"):
        await client.complete(chat_model(server.base_url), HELLO)
    assert (sleeps.seconds, len(server.requests)) == ([], 1)


@pytest.mark.behaviour("lemon_ai.10")
async def test_a_disconnect_after_text_is_not_retried_and_keeps_the_text(
    server: FakeChatServer, client: Client, sleeps: Sleeps
) -> None:
    server.enqueue(Turn(text="half an", disconnect=True))
    events = await all_events(client, chat_model(server.base_url))
    terminal = events[-1]
    assert isinstance(terminal, StreamError)
    assert get_text(terminal.message) == "half an"
    assert terminal.message.error is not None
    assert terminal.message.error.category == "transient"
    assert (sleeps.seconds, len(server.requests)) == ([], 1)


@pytest.mark.behaviour("lemon_ai.10")
async def test_a_disconnect_before_content_is_retried(
    server: FakeChatServer, client: Client, sleeps: Sleeps
) -> None:
    server.enqueue(Turn(disconnect=True), Turn(text="ok"))
    events = await all_events(client, chat_model(server.base_url))
    assert isinstance(events[-1], StreamDone)
    assert [event.type for event in events].count("start") == 1
    assert sleeps.seconds == [pytest.approx(0.3)]  # the middle of [200, 400] ms


@pytest.mark.behaviour("lemon_ai.9")
@pytest.mark.parametrize(
    ("provider", "status", "category", "retries"),
    [
        ("cerebras", 400, "context_length", 0),
        ("mistral", 400, "context_length", 0),
        ("somebody", 413, "context_length", 0),
        ("kimi", 400, "transient", 3),
        ("somebody", 400, "client", 0),
    ],
)
async def test_what_a_refusal_without_a_word_means(
    server: FakeChatServer,
    client: Client,
    sleeps: Sleeps,
    provider: str,
    status: int,
    category: str,
    retries: int,
) -> None:
    server.script.default = Turn(http_error=HttpError(status, ""))
    model = chat_model(server.base_url, provider=provider)
    events = await all_events(client, model)
    terminal = events[-1]
    assert isinstance(terminal, StreamError)
    assert terminal.message.error is not None
    assert terminal.message.error.category == category
    assert len(sleeps.seconds) == retries


async def test_retries_end_after_three(
    server: FakeChatServer, client: Client, sleeps: Sleeps
) -> None:
    server.enqueue(*[Turn(http_error=HttpError(503, ""))] * 5)
    with pytest.raises(ModelError, match="HTTP 503"):
        await client.complete(chat_model(server.base_url), HELLO)
    assert sleeps.seconds == [pytest.approx(s) for s in (0.3, 0.6, 1.2)]
    assert len(server.requests) == 4


async def test_a_refused_connection_says_host_and_reason(client: Client, sleeps: Sleeps) -> None:
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:1: connection refused") as caught:
        await client.complete(chat_model("http://127.0.0.1:1/v1"), HELLO)
    assert caught.value.message.error is not None
    assert caught.value.message.error.code == "connection_refused"
    assert len(sleeps.seconds) == 3


async def test_a_base_url_that_is_none_is_a_clear_error(client: Client, sleeps: Sleeps) -> None:
    with pytest.raises(ModelError, match="invalid base URL"):
        await client.complete(chat_model("not a url"), HELLO)
    assert sleeps.seconds == []


async def test_a_web_page_instead_of_a_stream_points_at_the_base_url(
    client: Client, sleeps: Sleeps
) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html></html>", content_type="text/html")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", page)
    async with serving(app) as base_url:
        with pytest.raises(ModelError, match=r"text/html.* instead of an event stream: check the"):
            await client.complete(chat_model(base_url), HELLO)
    assert sleeps.seconds == []


async def test_redirects_are_not_followed(client: Client) -> None:
    """A key must not travel to a host that a server names."""
    seen: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.path)
        raise web.HTTPTemporaryRedirect("/other")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", elsewhere)
    async with serving(app) as base_url:
        with pytest.raises(ModelError, match="HTTP 307"):
            await client.complete(chat_model(base_url), HELLO)
    assert seen == ["/v1/chat/completions"]


async def test_a_compressed_answer_is_read(client: Client) -> None:
    body = gzip.compress(wire(chunk("stop", content="pressed")))

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, headers={"content-encoding": "gzip"})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with serving(app) as base_url:
        assert get_text(await client.complete(chat_model(base_url), HELLO)) == "pressed"


async def test_a_connection_is_used_again(client: Client) -> None:
    ports: set[object] = set()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return web.Response(body=wire(chunk("stop", content="x")))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with serving(app) as base_url:
        for _ in range(3):
            await client.complete(chat_model(base_url), HELLO)
    assert len(ports) == 1


@pytest.mark.behaviour("lemon_ai.16")
@pytest.mark.parametrize("content", ["", "  \n"])
async def test_nothing_left_to_send_sends_nothing(
    server: FakeChatServer, client: Client, content: str
) -> None:
    context = Context(system_prompt="x", messages=[UserMessage(content=content)])
    with pytest.raises(ModelError, match="no message is left"):
        await client.complete(chat_model(server.base_url), context)
    assert server.requests == []


@pytest.mark.behaviour("lemon_ai.23")
async def test_lone_surrogates_and_nul_are_sent_as_valid_json(
    server: FakeChatServer, client: Client
) -> None:
    server.enqueue(Turn(text="ok"))
    context = Context(system_prompt="p\ud800", messages=[UserMessage(content="a\ud83d\x00b 🍋")])
    assert get_text(await client.complete(chat_model(server.base_url), context)) == "ok"
    messages = server.requests[0].body["messages"]
    assert [m["content"] for m in messages] == ["p\ufffd", "a\ufffd\x00b 🍋"]


async def test_headers_are_merged_without_case_and_options_win(
    server: FakeChatServer, client: Client
) -> None:
    server.enqueue(Turn(text="ok"))
    model = chat_model(server.base_url, headers={"X-Team": "model", "X-Row": "1"})
    options = StreamOptions(headers={"x-team": "call"}, api_key="sk-test")
    await client.complete(model, HELLO, options)
    headers = server.requests[0].headers
    assert (headers["x-team"], headers["x-row"]) == ("call", "1")
    assert headers["authorization"] == "Bearer sk-test"
    assert headers["content-type"] == "application/json"


async def test_a_key_never_shows_in_errors_reprs_or_logs(
    server: FakeChatServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers like to repeat a refused key."""
    caplog.set_level("DEBUG")
    secret = "sk-canary-123"
    server.enqueue(Turn(http_error=HttpError(401, {"error": {"message": f"bad key {secret}"}})))
    options = StreamOptions(api_key=secret, provider_options={"openai": {"api_key": secret}})
    with pytest.raises(ModelError, match=r"bad key \[REDACTED\]") as caught:
        await client.complete(chat_model(server.base_url), HELLO, options)
    error = caught.value.message.error
    assert error is not None
    assert error.category == "auth"
    texts = [repr(caught.value), repr(options), caught.value.message.model_dump_json()]
    assert secret not in "".join([*texts, caplog.text])


@pytest.mark.parametrize("name", ["Cookie", "x-portkey-api-key", "cf-aig-authorization"])
async def test_a_key_in_any_header_never_shows_in_errors(
    server: FakeChatServer, client: Client, name: str
) -> None:
    server.enqueue(Turn(http_error=HttpError(401, {"error": {"message": "bad canary-456"}})))
    options = StreamOptions(headers={name: "canary-456"})
    with pytest.raises(ModelError, match=r"bad \[REDACTED\]"):
        await client.complete(chat_model(server.base_url), HELLO, options)


async def test_an_unknown_api_names_the_known_ones(client: Client) -> None:
    with pytest.raises(UnknownApiError, match="openai_completions"):
        client.stream(chat_model(api="smoke_signals"), HELLO)


@pytest.mark.behaviour("lemon_ai.20")
async def test_the_first_model_of_a_server_needs_no_key(client: Client) -> None:
    async with FakeChatServer([Turn(text="ok")], models=("first", "second")) as fake:
        model_id = await client.first_model(fake.base_url)
        assert model_id == "first"
        model = Catalog().endpoint_model("openai", model_id, fake.base_url)
        assert get_text(await client.complete(model, HELLO)) == "ok"
        assert "authorization" not in fake.requests[0].headers
        assert fake.requests[0].path == "/v1/chat/completions"
        assert fake.requests[0].body["model"] == "first"


@pytest.mark.behaviour("lemon_ai.20")
async def test_a_model_without_tools_gets_no_schema(server: FakeChatServer, client: Client) -> None:
    server.enqueue(Turn(text="ok"), Turn(text="ok"))
    options = StreamOptions(tool_choice="auto")
    await client.complete(chat_model(server.base_url, tools=False), TOOL_CONTEXT, options)
    await client.complete(chat_model(server.base_url), TOOL_CONTEXT, options)
    without, with_tools = server.requests
    assert not {"tools", "tool_choice"} & set(without.body)
    assert with_tools.body["tools"][0]["function"]["name"] == "ls"


async def test_the_module_functions_close_their_own_client(server: FakeChatServer) -> None:
    server.enqueue(Turn(text="one"), Turn(text="two"))
    model = chat_model(server.base_url)
    options = StreamOptions(api_key="k")
    assert get_text(await complete(model, HELLO, options)) == "one"
    async with stream(model, HELLO, options) as events:
        assert await events.collect_text() == "two"


async def test_a_scripted_adapter_needs_no_server() -> None:
    adapter = ScriptedAdapter([Turn(text="scripted")])
    async with Client(env={}, adapters={"scripted": adapter}) as client:
        assert get_text(await client.complete(scripted_model(), HELLO)) == "scripted"
    assert adapter.requests[0].context is HELLO


async def test_many_streams_at_once_stay_apart(server: FakeChatServer, client: Client) -> None:
    names = [f"n{i}" for i in range(20)]
    server.enqueue(*(Turn(text=f"answer to {n}", when=f"<{n}>") for n in reversed(names)))
    model = chat_model(server.base_url)
    answers: dict[str, str] = {}

    async def ask(name: str) -> None:
        context = Context(messages=[UserMessage(content=f"<{name}>")])
        answers[name] = get_text(await client.complete(model, context))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
    assert answers == {name: f"answer to {name}" for name in names}


async def test_an_api_can_be_offered_and_taken_back() -> None:
    """Specification lemon_ai 2: the registry of adapters by API; a built-in one stays."""
    async with Client(env={}) as client:
        model = scripted_model()
        with pytest.raises(UnknownApiError):
            await client.complete(model, HELLO)
        client.offer_adapter("scripted", ScriptedAdapter([Turn(text="offered")]))
        assert get_text(await client.complete(model, HELLO)) == "offered"
        client.withdraw_adapter("scripted")
        with pytest.raises(UnknownApiError):
            await client.complete(model, HELLO)
        with pytest.raises(ValueError, match="is built in"):
            client.offer_adapter("openai_completions", ScriptedAdapter())
