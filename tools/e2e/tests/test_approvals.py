"""What a run asks is answered from another terminal."""

from __future__ import annotations

import json

import anyio
import pytest

from tools.e2e.tests.stack import LEMON, Home, Program, model_server, scripted, user

pytestmark = pytest.mark.anyio

WRITE = {"tool_calls": [{"name": "write", "arguments": {"path": "hello.txt", "content": "hi"}}]}
CAUTIOUS = '[profiles.default.tool_policy]\napprovals = { write = "always" }\n'


async def prepared(home: Home) -> None:
    config = anyio.Path(home.paths.state_dir / "config.toml")
    await config.parent.mkdir(mode=0o700, exist_ok=True)
    await config.write_text(CAUTIOUS)


async def question(me: Home, run: Program) -> dict[str, object]:
    """The question that the run has put, as another terminal sees it."""
    line = await run.wait_for("lemon approvals allow")
    listed = await me.lemon("approvals", "list", "--json")
    (pending,) = json.loads(listed.out)["approvals"]
    assert pending["id"] in line
    found: dict[str, object] = pending
    return found


@pytest.mark.behaviour("lemon_cli.27", "lemon_router.44")
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_question_is_answered_from_another_terminal(allowed: bool) -> None:
    async with user() as home:
        await prepared(home)
        script = {"turns": [WRITE, {"text": "Done."}]}
        async with model_server(script, home.paths.home) as base_url:
            me = scripted(home, base_url)
            async with (
                me.server(),
                me.start(LEMON, "run", "--session", "w", "--approve", "ask", "write it") as run,
            ):
                asked = await question(me, run)
                assert (asked["tool"], asked["session_key"]) == (
                    "write",
                    "agent:default:main:sub:w",
                )
                table = (await me.lemon("approvals", "list")).out.splitlines()
                assert table[1].split()[:3] == [asked["id"], "write", "w"]
                word = "allow" if allowed else "deny"
                answer = await me.lemon("approvals", word, str(asked["id"]))
                assert answer.code == 0
                ended = await run.wait()
                assert (ended.code, ended.out) == (0, "Done.")
                assert await anyio.Path(home.work / "hello.txt").exists() is allowed
                again = await me.lemon("approvals", word, str(asked["id"]))
                assert again.code == 1
                assert "is not open" in again.err


async def test_without_a_terminal_nobody_is_asked() -> None:
    async with user() as home:
        await prepared(home)
        async with model_server({"turns": [WRITE, {"text": "Done."}]}, home.paths.home) as base_url:
            me = scripted(home, base_url)
            ended = await me.lemon("run", "--session", "w", "write it")
            assert (ended.code, ended.out) == (0, "Done.")
            assert not await anyio.Path(home.work / "hello.txt").exists()
