"""Questions on a terminal (specification lemon_cli 3 and 10.9)."""

from __future__ import annotations

import pytest

from lemon_cli.tests.terminal import terminal
from lemon_cli.ui import Ui

CHOOSE = """
import logging
from lemon_cli.ui import Ui
ui = Ui.of({})
print("chose", ui.choose("Which one?", ["Anthropic", "OpenAI", "Groq"], default=1))
"""
CONFIRM = """
from lemon_cli.ui import Cancelled, Ui
try:
    print("said", Ui.of({}).confirm("Go on?", default=True))
except Cancelled as exc:
    print("gave up:", exc)
"""
HIDDEN = """
from lemon_cli.ui import Ui
value = Ui.of({}).ask_hidden("Key", check=lambda t: None if t.startswith("sk-") else "No key.")
print("length", len(value))
"""


@pytest.mark.parametrize(
    ("typed", "chosen"), [("", 1), ("1", 0), ("3", 2), ("groq", 2), ("ANTHROPIC", 0)]
)
def test_a_number_a_name_or_enter_chooses(typed: str, chosen: int) -> None:
    with terminal(CHOOSE, environ={}) as screen:
        screen.answer("Number or name [2]:", typed)
        assert screen.end() == 0
        assert f"chose {chosen}" in screen.text
        assert " > 2. OpenAI" in screen.text


@pytest.mark.behaviour("lemon_cli.9")
@pytest.mark.parametrize("typed", ["0", "4", "open", "-1", "1.5"])
def test_a_wrong_answer_is_explained_and_asked_again(typed: str) -> None:
    with terminal(CHOOSE, environ={}) as screen:
        screen.answer("Number or name [2]:", typed)
        screen.wait_for(f"'{typed}' is none of them: type a number from 1 to 3")
        screen.answer("Number or name [2]:", "2")
        assert screen.end() == 0
        assert "chose 1" in screen.text


@pytest.mark.behaviour("lemon_cli.9")
@pytest.mark.parametrize("typed", ["q\n", "QUIT\n", "cancel\n", "\x04"])
def test_giving_up_is_never_the_default(typed: str) -> None:
    """Control-D is the end of the input."""
    with terminal(CONFIRM, environ={}) as screen:
        screen.wait_for("Go on? [Y/n]")
        screen.type(typed)
        assert screen.end() == 0
        assert "gave up: cancelled" in screen.text
        assert "said" not in screen.text


@pytest.mark.parametrize(("typed", "said"), [("", True), ("n", False), ("YES", True)])
def test_yes_or_no(typed: str, said: bool) -> None:
    with terminal(CONFIRM, environ={}) as screen:
        screen.answer("Go on? [Y/n]", typed)
        assert screen.end() == 0
        assert f"said {said}" in screen.text


def test_hidden_input_is_not_shown_and_echo_comes_back() -> None:
    with terminal(HIDDEN, environ={}) as screen:
        screen.answer("Key (hidden):", "wrong-value")
        screen.wait_for("No key.")
        screen.answer("Key (hidden):", "sk-secret")
        assert screen.end() == 0
        assert "length 9" in screen.text
        assert b"secret" not in screen.raw
        assert b"wrong-value" not in screen.raw


def test_no_log_line_comes_between_question_and_answer() -> None:
    code = """
import logging, threading
from lemon_core import logs
from lemon_cli import ui
logs.configure("debug")
log = logs.get_logger("lemon_core.x")
class Loud:
    def readline(self):
        log.warning("while.open")
        return "y\\n"
import sys
sys.stdin = Loud()
ui.Ui(interactive=True).confirm("Go on?", default=False)
log.warning("after.it")
"""
    with terminal(code, environ={}) as screen:
        assert screen.end() == 0
        assert "while.open" not in screen.text
        assert "after.it" in screen.text


def test_colours_are_for_terminals_that_want_them() -> None:
    code = "from lemon_cli.ui import Ui\nimport os\nprint(Ui.of(os.environ).bold('loud'))"
    for environ, expected in (
        ({}, b"\x1b[1mloud"),
        ({"NO_COLOR": "1"}, b"loud"),
        ({"TERM": "dumb"}, b"loud"),
    ):
        with terminal(code, environ=environ) as screen:
            assert screen.end() == 0
            assert screen.raw.startswith(expected)


def test_without_a_terminal_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ui = Ui.of({})
    assert not ui.interactive
    with pytest.raises(AssertionError):
        ui.confirm("Go on?", default=True)
