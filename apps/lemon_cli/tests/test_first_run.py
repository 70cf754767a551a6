"""`lemon` alone, and the journey as a person sees it (specification lemon_cli 1, 3, 10.2, 10.9)."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest

from lemon_cli.setup_state import setup_required
from lemon_cli.tests.home import Home
from lemon_cli.tests.terminal import terminal
from lemon_cli.tests.vendor import vendor

PROGRAM = """
import sys
from lemon_cli.cli import COMMANDS
from lemon_cli.main import main
from lemon_core.commands import CommandSpec
from lemon_core.profiles import Profile
kept = tuple(spec for spec in COMMANDS if spec.name != "chat")
commands = {"lemon_cli": kept}
if "--with-chat" in sys.argv:
    sys.argv.remove("--with-chat")
    commands["x"] = (CommandSpec("chat", "Talk.", "lemon_cli.tests.fake_talk:app"),)
main(Profile("test", commands=commands))
"""


@pytest.mark.behaviour("lemon_cli.2")
def test_lemon_alone_without_a_terminal(home: Home) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**home.environ, "PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: lemon COMMAND")
    assert list(home.paths.home.iterdir()) == []


def test_the_whole_journey(home: Home) -> None:
    """Greeting, status, file, key, a provider with a wrong and a right answer, check, summary."""
    with (
        vendor("sk-good") as server,
        terminal(
            PROGRAM,
            "setup",
            environ={**home.environ, "GROQ_BASE_URL": server.base_url},
        ) as screen,
    ):
        screen.answer("Connect a model provider now? [Y/n]", "")
        screen.answer("Number or name [1]:", "99")
        screen.wait_for("'99' is none of them: type a number from 1 to")
        screen.answer("Number or name [1]:", "groq")
        screen.answer("API key of groq (hidden):", "sk-good")
        screen.answer("Make groq the default provider? [y/N]", "y")
        screen.answer("Number or name [1]:", "")
        assert screen.end() == 0
        text = screen.text
        assert "Lemon setup" in text
        assert "groq refused the credential (HTTP 401)" in text
        assert "Stored the credential as llm_groq_api_key, encrypted." in text
        assert "groq took the credential and lists 2 models." in text
        assert "Setup is complete." in text
        assert b"sk-good" not in screen.raw
        # First without a key: a server that is configured may need none.
        assert server.requests == [("/v1/models", ""), ("/v1/models", "sk-good")]
    assert 'provider = "groq"' in home.config
    assert home.secret("llm_groq_api_key") == "sk-good"


@pytest.mark.behaviour("lemon_cli.4")
def test_a_configured_home_is_not_asked_anything(home: Home) -> None:
    home.lemon("setup", "-n")
    with vendor("sk-good") as server:
        environ = {
            **home.environ,
            "GROQ_API_KEY": "sk-good",
            "GROQ_BASE_URL": server.base_url,
        }
        before = home.files()
        with terminal(PROGRAM, "setup", environ=environ) as screen:
            assert screen.end() == 0
            assert "Setup is complete." in screen.text
            assert "groq is ready" in screen.text
        with terminal(PROGRAM, "--with-chat", environ=environ) as screen:
            assert screen.end() == 0
            assert screen.text == "chatting"
        assert home.files() == before


def test_giving_up_leaves_what_was_done(home: Home) -> None:
    with terminal(PROGRAM, "setup", environ=home.environ) as screen:
        screen.answer("Connect a model provider now? [Y/n]", "q")
        screen.end()
        assert "No provider was connected." in screen.text
    assert home.paths.config_file.is_file()


def test_lemon_alone_sets_up_and_then_talks(home: Home) -> None:
    with terminal(PROGRAM, "--with-chat", environ=home.environ) as screen:
        screen.answer("Connect a model provider now? [Y/n]", "n")
        code = screen.end()
        is_ready = not anyio.run(setup_required, home.context)
        assert ("chatting" in screen.text) is is_ready
        assert code == (0 if is_ready else 1)


def test_what_is_still_required_starts_nothing(home: Home) -> None:
    home.write_config("[defaults\n")
    with terminal(PROGRAM, "--with-chat", environ=home.environ) as screen:
        screen.answer("Connect a model provider now? [Y/n]", "n")
        assert screen.end() == 1
        assert "chatting" not in screen.text
        assert "configuration: lemon config validate" in screen.text


def test_without_chat_usage_follows(home: Home) -> None:
    home.lemon("setup", "-n")
    with terminal(PROGRAM, environ={**home.environ, "GROQ_API_KEY": "sk-x"}) as screen:
        assert screen.end() == 2
        assert "usage: lemon COMMAND" in screen.text


def test_control_c_interrupts_a_question(home: Home) -> None:
    home.lemon("setup", "-n")
    with terminal(PROGRAM, "model", environ=home.environ) as screen:
        screen.wait_for("Number or name [1]:")
        screen.type("\x03")
        assert screen.end() == 130
        assert "Traceback" not in screen.text


@pytest.mark.behaviour("lemon_cli.9")
def test_the_picker_shows_names_ways_and_states(home: Home) -> None:
    home.lemon("setup", "-n")
    home.lemon("model", "xai", "--token", "sk-x")
    home.lemon("model", "groq", "--token", "sk-x", "--set-default")
    before = home.files()
    with terminal(PROGRAM, "model", environ=home.environ) as screen:
        screen.answer("Number or name [1]:", "q")
        assert screen.end() == 1
        lines = {line.split()[1]: line for line in screen.text.splitlines() if ". " in line}
        assert lines["xai"].endswith("API key (configured)")
        assert lines["groq"].endswith("API key (default)")
        assert "sign in with the browser" in lines["openrouter"]
        assert lines["mistral"].endswith("API key")
        assert "lemon: cancelled" in screen.text
    assert home.files() == before
