"""Who watches, and what may be seen."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lemon_ai import (
    AssistantMessage,
    Catalog,
    Client,
    Context,
    Model,
    StreamOptions,
    TextContent,
    Tool,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.admission import AdmissionError
from lemon_ai.http_trace import HttpTrace
from lemon_ai.redaction import clean_answer, secrets_of, shape_of, visible_headers, visible_url
from lemon_ai.telemetry import NAMES, Telemetry
from lemon_ai.testing import FakeProviderServer, FakeUsage, HttpError, Turn
from lemon_ai.tests.adapters.cases import CASES, ApiCase
from lemon_ai.tests.support import HELLO, Sleeps
from lemon_ai.transport import Transport

KEY = "sk-canary-KEY-7f3a9b"
PROMPT = "canary-PROMPT the eagle lands at noon"
SYSTEM = "canary-SYSTEM you are a secret agent"
TOOL = "canary-TOOL opens the safe"
ARGUMENT = "canary-ARGUMENT 1234"
RESULT = "canary-RESULT gold bars"
ANSWER = "canary-ANSWER understood"
CANARIES = (KEY, PROMPT, SYSTEM, TOOL, ARGUMENT, RESULT, ANSWER)
VERTEX = {"project": "p", "location": "l", "access_token": KEY}
TRACED = {"X-Lemon-Run-Id": "run_1", "x-lemon-session-key": "s", "x-lemon-agent-id": "a"}
CONTEXT = Context(
    system_prompt=SYSTEM,
    messages=[
        UserMessage(content=PROMPT, timestamp=1),
        AssistantMessage(
            content=[
                TextContent(text=ANSWER),
                ToolCall(id="c1", name="open", arguments={"code": ARGUMENT}),
            ],
            stop_reason="tool_use",
            timestamp=1,
        ),
        ToolResultMessage(
            tool_call_id="c1", tool_name="open", content=[TextContent(text=RESULT)], timestamp=1
        ),
    ],
    tools=(Tool("open", TOOL, {"type": "object", "properties": {}}),),
)
Seen = list[tuple[str, Mapping[str, float], Mapping[str, object]]]


def watched() -> tuple[Telemetry, Seen]:
    telemetry, seen = Telemetry(), Seen()
    telemetry.subscribe(lambda *event: seen.append(event))
    return telemetry, seen


@asynccontextmanager
async def client_with(telemetry: Telemetry, **env: str) -> AsyncIterator[Client]:
    """A client with this environment, whose retries do not wait."""
    transport = Transport(env=env, sleep=Sleeps(), jitter=lambda: 0.5)
    async with Client(env=env, transport=transport, telemetry=telemetry) as client:
        yield client


def model_at(server: FakeProviderServer) -> Model:
    return Catalog().endpoint_model("openai", "m", server.base_url_of("openai_completions"))


def test_a_subscriber_that_raises_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    telemetry, seen = Telemetry(), Seen()

    def broken(name: str, measurements: object, metadata: object) -> None:
        raise ValueError("no")

    telemetry.subscribe(broken)
    unsubscribe = telemetry.subscribe(lambda *event: seen.append(event))
    telemetry.emit("n", {"m": 1.0}, {"f": "x"})
    unsubscribe()
    unsubscribe()
    telemetry.emit("n", {}, {})
    assert seen == [("n", {"m": 1.0}, {"f": "x"})]
    assert [record.message for record in caplog.records] == ["telemetry.subscriber_raised"] * 2


@pytest.mark.anyio
async def test_calls_refusals_and_breakers_are_told() -> None:
    telemetry, seen = watched()
    async with (
        FakeProviderServer(default=Turn(http_error=HttpError(500))) as server,
        client_with(telemetry) as client,
    ):
        model = model_at(server)
        for _ in range(5):
            async with client.stream(model, HELLO) as stream:
                while await stream.next_batch():
                    pass
        with pytest.raises(AdmissionError):
            await client.complete(model, HELLO)
    names = [name for name, _, _ in seen]
    assert names == [
        *["lemon_ai.dispatcher.dispatch"] * 4,
        "lemon_ai.circuit_breaker.opened",
        "lemon_ai.dispatcher.dispatch",
        "lemon_ai.dispatcher.rejected",
    ]
    assert seen[-1][2]["reason"] == "circuit_open"
    assert set(names) <= set(NAMES)


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.22")
async def test_one_event_for_each_call_with_sizes_and_hashes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry, seen = watched()
    caplog.set_level(logging.DEBUG, "lemon_ai")
    env = {
        "LEMON_AI_PROMPT_DIAGNOSTICS": "1",
        "LEMON_AI_PROMPT_DIAGNOSTICS_TOP_N": "1",
        "LEMON_AI_PROMPT_DIAGNOSTICS_LOG_LEVEL": "debug",
    }
    turn = Turn(text=ANSWER, usage=FakeUsage(input=10, output=2))
    async with FakeProviderServer([turn, turn]) as server, client_with(telemetry, **env) as client:
        options = StreamOptions(api_key=KEY, headers=TRACED)
        await client.complete(model_at(server), CONTEXT, options)
        await client.complete(model_at(server), CONTEXT, options)
        for request in server.requests:
            assert not [name for name in request.headers if name.startswith("x-lemon")]
    calls = [event for event in seen if event[0] == "lemon_ai.llm_call"]
    _, measurements, metadata = calls[0]
    assert measurements["message_count"] == 3
    assert measurements["tool_count"] == 1
    assert measurements["system_prompt_bytes"] == len(SYSTEM)
    assert (measurements["input"], measurements["output"]) == (10, 2)
    assert metadata["roles"] == {"user": 1, "assistant": 1, "tool_result": 1}
    assert metadata["stop_reason"] == "stop"
    assert metadata["x-lemon-run-id"] == "run_1"
    assert metadata["x-lemon-session-key"] == "s"
    largest = metadata["largest"]
    assert isinstance(largest, list)
    assert [(row["index"], row["role"]) for row in largest] == [(1, "assistant")]
    assert calls[1][2] == metadata  # equal prompts have equal hashes
    record = next(r for r in caplog.records if r.message == "llm_call")
    assert record.levelno == logging.DEBUG
    everything = repr([vars(r) for r in caplog.records]) + repr(seen)
    assert [canary for canary in CANARIES if canary in everything] == []


@pytest.mark.anyio
async def test_nothing_is_told_of_prompts_unless_it_is_asked_for() -> None:
    telemetry, seen = watched()
    async with FakeProviderServer([Turn(text="hi")]) as server, client_with(telemetry) as client:
        await client.complete(model_at(server), HELLO)
    assert [name for name, _, _ in seen] == ["lemon_ai.dispatcher.dispatch"]


@pytest.mark.anyio
async def test_a_call_that_is_left_early_is_told_too() -> None:
    telemetry, seen = watched()
    env = {"LEMON_AI_PROMPT_DIAGNOSTICS": "1"}
    async with (
        FakeProviderServer([Turn(text="one two three")]) as server,
        client_with(telemetry, **env) as client,
        client.stream(model_at(server), HELLO) as stream,
    ):
        await stream.next_batch()
        await stream.next_batch()
    told = [metadata for name, _, metadata in seen if name == "lemon_ai.llm_call"]
    assert len(told) == 1


def echo(message: str) -> str:
    """An error that repeats what it was sent: whole, in part, and with the key."""
    return f"{message}: bad input {PROMPT!r} near {RESULT[4:]} ({SYSTEM}), key {KEY}"


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.22")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.api)
async def test_traces_and_dumps_hold_no_text_and_no_key(
    case: ApiCase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For each wire API: canaries are planted in prompt, tools, results, key and error."""
    telemetry, seen = watched()
    caplog.set_level(logging.DEBUG)
    env = {
        "LEMON_AI_HTTP_TRACE": "1",
        "LEMON_AI_ERROR_DUMPS": "1",
        "LEMON_AI_PROMPT_DIAGNOSTICS": "1",
        "HOME": str(tmp_path),
    }
    refused = HttpError(400, message=echo("refused"), headers={"x-request-id": "req_9"})
    async with (
        FakeProviderServer([Turn(http_error=refused)]) as server,
        client_with(telemetry, **env) as client,
    ):
        options = StreamOptions(
            api_key=KEY,
            headers={"cookie": KEY, **TRACED},
            provider_options={"google_vertex": VERTEX},
        )
        async with client.stream(case.model(server), CONTEXT, options) as stream:
            while await stream.next_batch():
                pass
    folder = tmp_path / ".lemon" / "logs" / "http-errors"
    (dump,) = folder.iterdir()
    assert dump.name.startswith("127.0.0.1-400-")
    assert stat.S_IMODE(dump.stat().st_mode) == 0o600
    text = dump.read_text()
    document = json.loads(text)
    assert document["status"] == 400
    assert document["request_headers"]["cookie"] == "[REDACTED]"
    assert "refused" in document["response"]
    answered = next(r for r in caplog.records if r.message == "http.answered")
    assert (answered.__dict__["status"], answered.__dict__["request_id"]) == (400, "req_9")
    assert answered.__dict__["request_bytes"] > 100
    shown = [vars(r) for r in caplog.records if r.name.startswith("lemon_ai")]
    everything = text + repr(shown) + repr(seen)
    pieces = (*CANARIES, "eagle lands", "gold bars", "secret agent", "canary-")
    assert [piece for piece in pieces if piece in everything] == []


@pytest.mark.anyio
async def test_both_are_off_unless_the_environment_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lemon_ai")
    env = {"HOME": str(tmp_path)}
    async with (
        FakeProviderServer([Turn(http_error=HttpError(400, message="no"))]) as server,
        client_with(Telemetry(), **env) as client,
        client.stream(model_at(server), HELLO) as stream,
    ):
        while await stream.next_batch():
            pass
    assert list(tmp_path.iterdir()) == []
    assert [r for r in caplog.records if r.message.startswith("http.")] == []
    assert HttpTrace.of({}) is None


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_written_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".lemon").write_text("a file, not a folder")
    env = {"HOME": str(tmp_path), "LEMON_AI_ERROR_DUMPS": "1"}
    async with (
        FakeProviderServer([Turn(http_error=HttpError(400, message="no"))]) as server,
        client_with(Telemetry(), **env) as client,
        client.stream(model_at(server), HELLO) as stream,
    ):
        while await stream.next_batch():
            pass
        assert stream.terminal is not None
        assert stream.terminal.type == "error"
    assert "http.dump_failed" in [record.message for record in caplog.records]


def test_what_is_shown_of_headers_urls_and_bodies() -> None:
    headers = {"Authorization": "Bearer abc", "X-Amz-Security-Token": "t", "accept": "a/b"}
    assert visible_headers(headers) == {
        "Authorization": "[REDACTED]",
        "X-Amz-Security-Token": "[REDACTED]",
        "accept": "a/b",
    }
    assert secrets_of(headers) == ["Bearer abc", "abc", "t"]
    assert visible_url("https://me:pw@host/v1/x?key=k#f") == "https://host/v1/x"
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max": 3}
    assert shape_of(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "<5 characters>"}],
        "max": 3,
    }


def test_an_answer_that_repeats_the_request() -> None:
    texts = ["the eagle lands at noon", "short"]
    raw = b'{"error":"the eagle lands at noon, and short; \\u0074he eagle lands"}'
    cleaned = clean_answer(raw, texts=texts, secrets=["k"], limit=1_200)
    assert cleaned == '{"error":"[TEXT], and [TEXT]; [TEXT]"}'
    assert (
        clean_answer(b"\xff" * 2_000, texts=[], secrets=[], limit=10).encode()[:3] == "�".encode()
    )
