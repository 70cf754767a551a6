"""`lemon chat` on a terminal, with a runtime in the process (specification lemon_cli 10.29)."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lemon_cli.tests.home import Home
from lemon_core.testing.terminal import CTRL_C, CTRL_D, NEW_LINE, TAB, Terminal, terminal

pytestmark = pytest.mark.anyio

CHILD = """
import sys
from lemon_cli import cli
from lemon_cli.main import run
from lemon_core.profiles import Profile

profile = Profile(
    name="test",
    components=("lemon_cli.tests.fake_chat:component",),
    commands={"lemon_cli": cli.COMMANDS},
)
sys.exit(run(["chat", *sys.argv[1:]], profile=profile))
"""
SGR_COLOR = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9]+)*m")


@pytest.fixture
def ready(home: Home) -> Home:
    """A home that is set up."""
    home.extra = {"OPENAI_API_KEY": "test-key"}
    assert home.lemon("setup", "--non-interactive", "--skip-verify") == 0
    return home


@asynccontextmanager
async def chat(
    home: Home, *arguments: str, rows: int = 40, **environ: str
) -> AsyncIterator[Terminal]:
    """The command in a home, once it is ready for a message."""
    env = {**home.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    command = [sys.executable, "-c", CHILD, *arguments]
    async with terminal(command, env, cwd=home.paths.home, rows=rows) as screen:
        await screen.wait_for("session ")
        yield screen


async def leave(screen: Terminal) -> None:
    screen.type(CTRL_D)
    assert await screen.end() == 0


@pytest.mark.behaviour("lemon_cli.29")
async def test_an_answer_streams_in_as_markdown_and_ends_with_what_it_took(ready: Home) -> None:
    async with chat(ready, "--session", "w") as screen:
        screen.enter("good morning")
        text = await screen.wait_for("1.5 s")
        lines = [line for line in text.splitlines() if line]
        assert lines[:4] == [
            "session w (continue later with lemon chat --session w)",
            "› good morning",
            "Echo",
            "You said good morning.",
        ]
        assert "openai:gpt-5.4 · 1,200 in, 34 out · $0.0123 · context" in text
        screen.enter("and again")
        await screen.wait_for("You said and again.")
        await leave(screen)


@pytest.mark.behaviour("lemon_cli.29")
async def test_a_message_waits_in_line_and_a_steer_reaches_the_working_run(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.enter("hold it")
        await screen.wait_for("begun")
        screen.enter("afterwards")
        await screen.wait_for("queued: afterwards")
        screen.enter("/steer go")
        text = await screen.wait_for("You said afterwards.")
        assert "› go  (taken by the working run)" in text
        assert text.index("begun") < text.index("› afterwards") < text.index("You said")
        assert "queued: afterwards" not in text
        await leave(screen)


@pytest.mark.behaviour("lemon_cli.29")
async def test_ctrl_c_aborts_the_run_and_a_second_one_leaves(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.enter("hold it")
        await screen.wait_for("begun")
        screen.type(CTRL_C)
        await screen.wait_for("aborted")
        screen.type(CTRL_C)
        assert await screen.end() == 130


async def test_esc_aborts_the_run_and_stays(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.enter("hold it")
        await screen.wait_for("begun")
        await screen.wait_for("Esc aborts")
        screen.type("a draft\x1b")
        await screen.wait_for("aborted")
        await screen.wait_for("› a draft")
        screen.type(CTRL_C)
        await screen.wait_gone("a draft")
        screen.enter("good morning")
        await screen.wait_for("You said good morning.")
        await leave(screen)


async def test_esc_denies_what_is_asked(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.enter("ask me")
        await screen.wait_for("1 once")
        screen.type("\x1b")
        await screen.wait_for("refused")
        await leave(screen)


async def test_tab_completes_before_the_menu_is_there(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.type(f"/sta{TAB}\r")
        await screen.wait_for("this process")
        screen.type(f"/app{TAB}")
        await screen.wait_for("› /approv")
        screen.type(f"als{TAB}\r")
        await screen.wait_for("nothing waits")
        await leave(screen)


async def test_ctrl_c_without_a_run_takes_the_draft_then_asks_to_be_sure(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.type("a draft")
        await screen.wait_for("› a draft")
        screen.type(CTRL_C)
        await screen.wait_gone("a draft")
        screen.type(CTRL_C)
        await screen.wait_for("Ctrl+C again leaves")
        screen.type(CTRL_C)
        assert await screen.end() == 130


@pytest.mark.behaviour("lemon_cli.29")
@pytest.mark.parametrize(
    ("key", "outcome"),
    [("1", "allowed once"), ("2", "allowed session"), ("3", "allowed agent"), ("4", "refused")],
)
async def test_a_question_is_answered_in_place(ready: Home, key: str, outcome: str) -> None:
    async with chat(ready) as screen:
        screen.enter("ask me")
        keys = "1 once   2 for this session   3 always, for this agent   4 no"
        text = await screen.wait_for(keys)
        assert "? bash asks:\n    rm -rf build" in text
        screen.type(key)
        await screen.wait_for(outcome)
        await screen.wait_gone("1 once")
        await leave(screen)


async def test_a_draft_is_no_answer(ready: Home) -> None:
    """Whoever is typing when a question comes up does not answer it by accident."""
    async with chat(ready) as screen:
        screen.enter("ask me")
        await screen.wait_for("1 once")
        screen.type("x1")
        await screen.wait_for("› x1")
        assert "allowed" not in screen.text
        screen.type("\x7f\x7f4")
        await screen.wait_for("refused")
        await leave(screen)


async def test_a_change_is_one_line_with_its_diff_in_colour(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.enter("edit it")
        text = await screen.wait_for("changed")
        assert "  ✓ edit: a.txt\n    @@ -1,2 +1,2 @@\n     one\n    -two\n    +three" in text
        assert b"\x1b[31m    -two" in screen.raw
        assert b"\x1b[32m    +three" in screen.raw
        await leave(screen)


@pytest.mark.behaviour("lemon_cli.29")
async def test_no_color_is_honoured(ready: Home) -> None:
    async with chat(ready, NO_COLOR="1") as screen:
        for message in ("good morning", "edit it", "fail now"):
            screen.enter(message)
        await screen.wait_for("no luck")
        await screen.wait_for("+three")
        assert not SGR_COLOR.search(screen.raw)
        await leave(screen)


@pytest.mark.behaviour("lemon_cli.29")
async def test_a_dumb_terminal_gets_plain_lines(ready: Home) -> None:
    async with chat(ready, TERM="dumb") as screen:
        screen.enter("good morning")
        await screen.wait_for("You said **good morning**.")
        screen.enter("ask me")
        await screen.wait_for("answer with 1 once")
        screen.enter("y")
        await screen.wait_for("allowed once")
        screen.enter("hold it")
        await screen.wait_for("begun")
        screen.enter("afterwards")
        await screen.wait_for("lemon: waits: afterwards")
        screen.type(CTRL_C)
        await screen.wait_for("You said **afterwards**.")
        assert "aborted" in screen.text
        assert b"\x1b" not in screen.raw
        await leave(screen)


async def test_model_text_cannot_steer_the_terminal(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.enter("evil one")
        await screen.wait_for("1.5 s")
        assert "› evil one" in screen.text
        assert "evil [2J]0;title31m" in screen.text
        for sequence in (b"\x1b[2J\x1b]0", b"\x1b]0;title", b"\x9b31m", b"\x1b[5m"):
            assert sequence not in screen.raw
        await leave(screen)


async def test_several_lines_history_and_completion(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.type(f"first{NEW_LINE}second")
        await screen.wait_for("  second")
        screen.enter("")
        await screen.wait_for("You said first second.")
        screen.type("/think")
        await screen.wait_for("how hard it thinks")
        screen.type(TAB)
        await screen.wait_for("› /thinking")
        screen.enter("high")
        await screen.wait_for("thinking: high")
        await leave(screen)
    history = ready.paths.state_dir / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+second" in history.read_text()
    async with chat(ready) as screen:
        screen.type("\x1b[A")
        await screen.wait_for("› /thinking high")
        screen.type(CTRL_C)
        await leave(screen)


async def test_nothing_is_left_for_the_shell(ready: Home) -> None:
    """The terminal's answers about its cursor would stand behind the shell's prompt."""
    after = (
        "import os, select, tty\ntty.setraw(0)\nprint('left', select.select([0], [], [], 0.2)[0])"
    )
    child = CHILD.replace("sys.exit(", "code = (") + f"{after}\nsys.exit(code)\n"
    env = {**ready.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    async with terminal([sys.executable, "-c", child], env, cwd=ready.paths.home) as screen:
        await screen.wait_for("session ")
        screen.type(f"/nonsense\r/nonsense\r{CTRL_D}")
        assert await screen.end() == 0
        assert "left []" in screen.text


async def test_bytes_that_are_no_text_do_no_harm(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.enter("caf\udce9 please")
        await screen.wait_for("You said caf? please.")
        await leave(screen)


async def test_commands(ready: Home) -> None:
    async with chat(ready, "--session", "w") as screen:
        for command, shown in (
            ("/help", "/thinking [LEVEL|-]"),
            ("/model openai:gpt-5.4-mini", "this session's model: openai:gpt-5.4-mini"),
            ("/model", "model  openai:gpt-5.4-mini"),
            ("/queue steer", "messages to a working run: steer"),
            ("/queue", "nothing waits"),
            ("/status", "this process"),
            ("/usage", "0 turns"),
            ("/approvals", "nothing waits"),
            ("/sessions", "no sessions yet"),
            ("/thinkng", "did you mean /thinking?"),
            ("/thinking loud", "use one of off, minimal"),
            ("/approve nothing", "is not open"),
            ("/image none.png", "none.png: No such file or directory"),
            ("/session other", "session other (continue later"),
        ):
            screen.enter(command)
            await screen.wait_for(shown)
        screen.enter("/quit")
        assert await screen.end() == 0


async def test_pictures_go_with_the_message(ready: Home) -> None:
    (ready.paths.home / "a.png").write_bytes(b"png")
    (ready.paths.home / "b.jpg").write_bytes(b"jpg")
    async with chat(ready, "--model", "openai:x", "--thinking", "low") as screen:
        screen.enter("/image b.jpg")
        await screen.wait_for("with the next message: b.jpg")
        screen.enter("facts about @a.png")
        text = await screen.wait_for("1.5 s")
        assert '"image/jpeg",' in text
        assert '"image/png"' in text
        assert '"model": "openai:x"' in text
        assert '"thinking_level": "low"' in text
        assert '"approvals": "ask"' in text
        await leave(screen)


async def test_a_terminal_that_becomes_narrow_keeps_the_input_in_sight(ready: Home) -> None:
    async with chat(ready) as screen:
        screen.enter("hold it")
        await screen.wait_for("begun")
        screen.resize(40, 12)
        screen.type("still here")
        await screen.wait_for("› still here")
        screen.type(CTRL_C)
        await screen.wait_for("aborted")
        await screen.wait_for("› still here")
        screen.type(CTRL_C)
        await leave(screen)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
async def test_a_termination_ends_it_in_order(ready: Home, term: str) -> None:
    async with chat(ready, TERM=term) as screen:
        screen.enter("hold it")
        await screen.wait_for("begun")
        screen.signal(signal.SIGTERM)
        assert await screen.end() == 0


def test_without_a_terminal_there_is_no_chat(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    assert home.lemon("chat") == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert "chat needs a terminal" in said.err
    assert not home.paths.state_dir.exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--thinking", "loud"), "--thinking"),
        (("--session", "agent:x:nowhere"), "--session"),
        (("--cwd", "/does/not/exist"), "no such directory"),
    ],
)
def test_wrong_arguments_end_with_2(
    home: Home, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], words: str
) -> None:
    assert home.lemon("chat", *argv) == 2
    assert words in capsys.readouterr().err
