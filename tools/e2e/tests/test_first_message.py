"""A message from a terminal, through all apps, with a scripted model that speaks the real wire."""

from __future__ import annotations

import json
import signal

import anyio
import pytest

from tools.e2e.tests.stack import LEMON, model_server, scripted, user

pytestmark = pytest.mark.anyio

TOOL_TURN = {
    "tool_calls": [{"name": "write", "arguments": {"path": "hello.txt", "content": "hi"}}],
    "when": "create hello.txt",
}


async def test_a_prompt_runs_a_real_tool_and_the_file_is_there() -> None:
    async with user() as home:
        script = {"turns": [TOOL_TURN, {"text": "Done."}]}
        async with model_server(script, home.paths.home) as base_url:
            me = scripted(home, base_url)
            async with me.server() as server:
                ended = await me.lemon("run", "--session", "w", "create hello.txt holding hi")
                assert (ended.code, ended.out) == (0, "Done.")
                assert [line.strip()[0] for line in ended.err.splitlines()] == ["▸", "✓"]
                assert await anyio.Path(home.work / "hello.txt").read_text() == "hi"
                server.signal(signal.SIGTERM)
                stopped = await server.wait()
                assert stopped.code == 0
                assert "Lemon has stopped." in stopped.out
            assert not home.paths.router_socket.exists()
            assert not home.paths.gateway_socket.exists()


@pytest.mark.behaviour("lemon_cli.25", "lemon_cli.26")
async def test_a_second_run_continues_the_conversation() -> None:
    async with user() as home:
        script = {"turns": [{"text": "Blue."}, {"text": "You asked about the sky."}]}
        async with model_server(script, home.paths.home) as base_url:
            me = scripted(home, base_url)
            async with me.server():
                first = await me.lemon("run", "--session", "w", "What colour is the sky?")
                assert (first.code, first.out) == (0, "Blue.")
                again = await me.lemon("run", "--session", "w", "What did I ask?")
                assert (again.code, again.out) == (0, "You asked about the sky.")
            # In the process now: the conversation is on disk, not in the server.
            requests = await _requests(base_url)
            sent = [message["role"] for message in requests[-1]["messages"]]
            assert sent[-3:] == ["user", "assistant", "user"]


@pytest.mark.behaviour("lemon_cli.25")
async def test_without_a_server_the_run_happens_in_the_process() -> None:
    async with user() as home:
        script = {"turns": [{"text": "Alone."}]}
        async with model_server(script, home.paths.home) as base_url:
            me = scripted(home, base_url)
            ended = await me.lemon("run", "--json", "--session", "w", "hi")
            assert ended.code == 0
            rows = [json.loads(line) for line in ended.out.splitlines()]
            types = [row["type"] for row in rows]
            assert types[-1] == "run_completed"
            assert {"run_started", "engine_started", "delta", "engine_completed"} <= set(types)
            deltas = [row["payload"]["text"] for row in rows if row["type"] == "delta"]
            completed = rows[-1]["payload"]["completed"]
            assert "".join(deltas) == completed["answer"] == "Alone."
            assert completed["usage"]
            assert not home.paths.router_socket.exists()


async def test_ctrl_c_cancels_the_run_in_the_gateway() -> None:
    async with user() as home:
        script = {
            "turns": [
                {"text": ["begun\n", "never"], "gate": "held", "gate_after": 1},
                {"text": "Next."},
            ]
        }
        async with model_server(script, home.paths.home) as base_url:
            me = scripted(home, base_url)
            async with me.server():
                async with me.start(LEMON, "run", "--session", "w", "wait for me") as waiting:
                    await waiting.wait_for("begun")
                    waiting.signal(signal.SIGINT)
                    ended = await waiting.wait()
                    assert ended.code == 130
                    assert ended.out == "begun"
                # Two slots, one conversation: this only runs when the first one is really over.
                after = await me.lemon("run", "--session", "w", "and now?")
                assert (after.code, after.out) == (0, "Next.")


async def test_sigterm_ends_live_runs_and_their_watchers() -> None:
    async with user() as home:
        script = {"turns": [{"text": ["begun\n", "never"], "gate": "held", "gate_after": 1}]}
        async with model_server(script, home.paths.home) as base_url:
            me = scripted(home, base_url)
            async with me.server() as server:
                async with me.start(LEMON, "run", "--session", "w", "wait for me") as waiting:
                    await waiting.wait_for("begun")
                    server.signal(signal.SIGTERM)
                    ended = await waiting.wait()
                    assert ended.code == 1
                    assert "gateway_shutdown" in ended.err
                assert (await server.wait()).code == 0


async def _requests(base_url: str) -> list[dict[str, list[dict[str, object]]]]:
    import aiohttp  # the fake server's control interface

    url = base_url.removesuffix("/v1") + "/control/requests"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return [request["body"] for request in await answer.json()]
