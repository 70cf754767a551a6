"""`lemon chat` on a terminal: through a running server, and all in its own process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import pytest

from lemon_core.testing.terminal import CTRL_C, CTRL_D, Terminal, terminal
from tools.e2e.tests.stack import LEMON, RUN_S, Home, document, model_server, scripted, user

pytestmark = pytest.mark.anyio

HELD = {"text": ["begun ", "and ended"], "gate": "held", "gate_after": 1}
WRITE = {"tool_calls": [{"name": "write", "arguments": {"path": "a.txt", "content": "one\n"}}]}
EDIT = {
    "tool_calls": [
        {"name": "edit", "arguments": {"path": "a.txt", "old_text": "one", "new_text": "two"}}
    ]
}
CAUTIOUS = '[profiles.default.tool_policy]\napprovals = { write = "always" }\n'
COLOR = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9]+)*m")
BOTH_WAYS = pytest.mark.parametrize("served", [True, False], ids=["server", "process"])


@dataclass(frozen=True, slots=True)
class Desk:
    """A user with a scripted model, perhaps a server, and terminals to open."""

    me: Home
    base_url: str

    @asynccontextmanager
    async def chat(self, *arguments: str, **environ: str) -> AsyncIterator[Terminal]:
        """`lemon chat`, once it is ready."""
        env = {**self.me.environ, "BUILD_WORKING_DIRECTORY": str(self.me.work), **environ}
        command: list[str | Path] = [LEMON, "chat", "--session", "w", *arguments]
        async with terminal(command, env, cwd=self.me.work, limit_s=RUN_S) as screen:
            await screen.wait_for("session w")
            yield screen

    async def open_gate(self) -> None:
        url = self.base_url.removesuffix("/v1") + "/control/gates/held"
        async with aiohttp.ClientSession() as http, http.post(url) as answer:
            assert answer.status == 200


@asynccontextmanager
async def desk(
    *turns: Mapping[str, object], served: bool = True, config: str = "", is_set_up: bool = True
) -> AsyncIterator[Desk]:
    async with user() as home:
        if config:
            home.paths.state_dir.mkdir(mode=0o700)
            home.paths.config_file.write_text(config)
        script = {"turns": turns, "default": {"text": "Nothing more."}}
        async with model_server(script, home.paths.home) as base_url, AsyncExitStack() as stack:
            me = scripted(home, base_url)
            if is_set_up:
                ended = await me.lemon("setup", "--non-interactive", "--skip-verify")
                assert ended.code == 0
            if served:
                await stack.enter_async_context(me.server())
            yield Desk(me, base_url)


async def leave(screen: Terminal) -> None:
    screen.type(CTRL_D)
    assert await screen.end() == 0


@pytest.mark.behaviour("lemon_cli.29")
@BOTH_WAYS
async def test_a_conversation_with_tools(served: bool) -> None:
    answer = {"text": "# Done\n\nIt says **two** now."}
    async with desk(WRITE, EDIT, answer, {"text": "Again."}, served=served) as here:
        async with here.chat() as screen:
            screen.enter("change it")
            text = await screen.wait_for("It says two now.")
            assert "  ✓ write: a.txt\n    +one\n  ✓ edit: a.txt\n    @@ " in text
            assert "    -one\n    +two" in text
            text = await screen.wait_for(" out · context ")
            assert "openai:fake-model · " in text
            screen.enter("and again")
            await screen.wait_for("Again.")
            await leave(screen)
        assert await anyio.Path(here.me.work / "a.txt").read_text() == "two\n"
        # The conversation is the one that other commands see.
        ended = await here.me.lemon("run", "--session", "w", "more")
        assert (ended.code, ended.out) == (0, "Nothing more.")
        async with here.chat() as screen:
            text = await screen.wait_for("Nothing more.")
            assert "session w, 3 runs so far" in text
            await leave(screen)


@pytest.mark.behaviour("lemon_cli.29")
@BOTH_WAYS
async def test_an_approval_is_answered_in_place(served: bool) -> None:
    turns = (WRITE, {"text": "Refused."}, WRITE, {"text": "Written."})
    async with desk(*turns, served=served, config=CAUTIOUS) as here, here.chat() as screen:
        screen.enter("write it")
        text = await screen.wait_for("1 once")
        assert "? write asks:\n    a.txt\n    +one" in text
        screen.type("4")
        await screen.wait_for("Refused.")
        assert not await anyio.Path(here.me.work / "a.txt").exists()
        screen.enter("write it after all")
        await screen.wait_for("1 once")
        screen.type("1")
        await screen.wait_for("Written.")
        assert await anyio.Path(here.me.work / "a.txt").read_text() == "one\n"
        await leave(screen)


@pytest.mark.behaviour("lemon_cli.29")
@BOTH_WAYS
async def test_messages_to_a_working_run_wait_or_steer_it(served: bool) -> None:
    turns = (HELD, {"text": "Steered."}, {"text": "Afterwards."})
    async with desk(*turns, served=served) as here, here.chat() as screen:
        screen.enter("first")
        await screen.wait_for("begun")
        screen.enter("second")
        await screen.wait_for("queued: second")
        screen.enter("/steer look left")
        await screen.wait_for("› look left  (taken by the working run)")
        await here.open_gate()
        text = await screen.wait_for("Afterwards.")
        places = ["› first", "Steered.", "› second", "Afterwards."]
        assert sorted(places, key=text.index) == places
        await leave(screen)


@pytest.mark.behaviour("lemon_cli.29")
@BOTH_WAYS
async def test_ctrl_c_aborts_the_run_and_the_conversation_goes_on(served: bool) -> None:
    async with desk(HELD, {"text": "Next."}, HELD, served=served) as here:
        async with here.chat() as screen:
            screen.enter("first")
            await screen.wait_for("begun")
            screen.type(CTRL_C)
            await screen.wait_for("aborted")
            screen.enter("second")
            await screen.wait_for("Next.")
            screen.enter("third")
            await screen.wait_for("begun", times=2)
            screen.type(CTRL_C + CTRL_C)
            assert await screen.end() == 130
        if served:
            listed = await document(here.me, "runs", "list", "--active")
            assert listed["runs"] == []


async def test_an_interrupt_takes_the_place_of_the_working_run() -> None:
    async with desk(HELD, {"text": "Instead."}) as here, here.chat() as screen:
        screen.enter("first")
        await screen.wait_for("begun")
        screen.enter("/interrupt rather this")
        text = await screen.wait_for("Instead.")
        assert text.index("interrupted by a newer message") < text.index("› rather this")
        await leave(screen)


async def test_a_run_outlives_the_chat_in_a_server() -> None:
    async with desk(HELD) as here:
        async with here.chat() as screen:
            screen.enter("first")
            await screen.wait_for("begun")
            screen.enter("/quit")
            await screen.wait_for("the run goes on in the server")
            assert await screen.end() == 0
        (run,) = (await document(here.me, "runs", "list", "--active"))["runs"]
        assert run["prompt"] == "first"
        await here.open_gate()


@pytest.mark.behaviour("lemon_cli.29")
async def test_no_colour_and_a_dumb_terminal() -> None:
    turns = (WRITE, EDIT, {"text": "**Done.**"}, {"text": "**Plainly.**"})
    async with desk(*turns) as here:
        async with here.chat(NO_COLOR="1") as screen:
            screen.enter("change it")
            text = await screen.wait_for("Done.")
            assert "+two" in text
            await leave(screen)
            assert not COLOR.search(screen.raw)
        async with here.chat(TERM="dumb") as screen:
            screen.enter("hello")
            await screen.wait_for("**Plainly.**")
            await leave(screen)
            assert b"\x1b" not in screen.raw


@pytest.mark.behaviour("lemon_cli.29")
async def test_setup_comes_first_when_it_is_needed() -> None:
    async with desk({"text": "Welcome."}, served=False, is_set_up=False) as here:
        async with here.chat() as screen:
            text = await screen.wait_for("›")
            assert text.index("Setup is complete") < text.index("session w")
            screen.enter("hello")
            await screen.wait_for("Welcome.")
            await leave(screen)
        async with here.chat() as screen:
            await screen.wait_for("session w, 1 run so far")
            assert "Setup" not in screen.text
            await leave(screen)


async def test_without_a_terminal_it_says_what_to_use() -> None:
    async with user() as home:
        ended = await home.lemon("chat")
        assert (ended.code, ended.out) == (2, "")
        assert "lemon run" in ended.err
