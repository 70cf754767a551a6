"""The scripted server itself: what it records, how it is steered, and its program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import aiohttp
import anyio
import pytest

from lemon_ai import Client, ModelError, StreamOptions, get_text, get_tool_calls
from lemon_ai.testing import FakeChatServer, FakeToolCall, ScriptedAdapter, Turn, scripted_model
from lemon_ai.testing.script import ScriptExhausted, turn_from_json
from lemon_ai.tests.support import HELLO, TOOL_CONTEXT, all_events, chat_model, final_message

pytestmark = pytest.mark.anyio


async def test_it_records_headers_and_body(server: FakeChatServer, client: Client) -> None:
    server.enqueue(Turn(text="ok"))
    await client.complete(chat_model(server.base_url), HELLO, StreamOptions(api_key="k"))
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k"
    assert request.last_text == "Say hello"
    assert server.script.remaining == 0


async def test_a_request_without_a_turn_fails_loudly(
    server: FakeChatServer, client: Client
) -> None:
    with pytest.raises(ModelError, match="no scripted turn is left for the message 'Say hello'"):
        await client.complete(chat_model(server.base_url), HELLO)


async def test_the_default_answers_again_and_again(client: Client) -> None:
    async with FakeChatServer(default=Turn(text="same")) as fake:
        for _ in range(3):
            answer = await client.complete(chat_model(fake.base_url), HELLO)
            assert get_text(answer) == "same"


async def test_a_paced_answer_is_whole(server: FakeChatServer, client: Client) -> None:
    server.enqueue(Turn(text="one two", pace_ms=1))
    answer = await client.complete(chat_model(server.base_url), HELLO)
    assert get_text(answer) == "one two"


async def test_turns_may_wait_for_their_message(server: FakeChatServer, client: Client) -> None:
    server.enqueue(Turn(text="later", when="other"), Turn(text="now", when="hello"))
    assert get_text(await client.complete(chat_model(server.base_url), HELLO)) == "now"
    assert server.script.remaining == 1


async def test_the_scripted_adapter_gives_the_same_answers(
    server: FakeChatServer, client: Client
) -> None:
    turns = [
        Turn(thinking="hm", text="hello there", tool_calls=[FakeToolCall("ls", {"a": 1})]),
        Turn(text="half", disconnect=True),
        Turn(text="half", stream_error={"message": "no", "code": 400}),
        Turn(text="half", truncate=True),
    ]
    adapter = ScriptedAdapter(turns)
    server.enqueue(*turns)
    async with Client(env={}, adapters={"scripted": adapter}) as scripted:
        for _ in turns:
            model = chat_model(server.base_url)
            over_http = final_message(await all_events(client, model, TOOL_CONTEXT))
            direct = final_message(await all_events(scripted, scripted_model(), TOOL_CONTEXT))
            assert direct.content == over_http.content
            assert direct.stop_reason == over_http.stop_reason


async def test_an_exhausted_adapter_says_so() -> None:
    async with Client(env={}, adapters={"scripted": ScriptedAdapter()}) as client:
        with pytest.raises(ModelError, match="no scripted turn is left"):
            await client.complete(scripted_model(), HELLO)
    assert str(ScriptExhausted("x")) == "no scripted turn is left for the message 'x'"


def test_turns_from_a_file() -> None:
    assert turn_from_json(
        {
            "text": "t",
            "tool_calls": [{"name": "ls", "arguments": {"a": 1}}],
            "http_error": {"status": 500},
            "raw": "data: x\n\n",
        }
    ) == Turn(
        text="t",
        tool_calls=(FakeToolCall("ls", {"a": 1}),),
        http_error=turn_from_json({"http_error": {"status": 500}}).http_error,
        raw=b"data: x\n\n",
    )


async def test_the_program_serves_a_script_and_is_steered_over_http(
    tmp_path: Path, client: Client
) -> None:
    script = tmp_path / "script.json"
    call = {"name": "bash", "arguments": {"command": "ls"}}
    script.write_text(
        json.dumps(
            {
                "turns": [{"tool_calls": [call]}, {"text": "held", "gate": "g", "gate_after": 0}],
                "default": {"text": "done"},
                "models": ["scripted-1"],
            }
        )
    )
    command = [sys.executable, "-m", "lemon_ai.testing.provider_server", "--script", str(script)]
    with anyio.fail_after(30):
        async with await anyio.open_process(command, stderr=None) as program:
            assert program.stdout is not None
            origin = (await program.stdout.receive()).decode().strip()
            await _talk(origin, client)
            program.terminate()
            assert await program.wait() == 0


async def _talk(root: str, client: Client) -> None:
    base_url = f"{root}/v1"
    model = chat_model(base_url)
    assert await client.first_model(base_url) == "scripted-1"
    answer = await client.complete(model, TOOL_CONTEXT)
    assert get_tool_calls(answer)[0].arguments == {"command": "ls"}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{root}/control/gates/g") as reply:
            assert reply.status == 200
        assert get_text(await client.complete(model, HELLO)) == "held"
        async with session.post(f"{root}/control/turns", json=[{"text": "added"}]) as reply:
            assert await reply.json() == {"remaining": 1}
        assert get_text(await client.complete(model, HELLO)) == "added"
        assert get_text(await client.complete(model, HELLO)) == "done"
        async with session.get(f"{root}/control/requests") as reply:
            recorded = await reply.json()
    assert [r["body"]["messages"][-1]["content"] for r in recorded] == ["Say hello"] * 4
