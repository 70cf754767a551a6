"""How what is shown looks, with styles and as plain lines."""

from __future__ import annotations

import re

import pytest

from lemon_cli.chat.answers import choices_text, decision_of, question_lines
from lemon_cli.chat.diffs import MAX_LINES, diff_of
from lemon_cli.chat.live_view import clipped, live_lines, tail, wrapped
from lemon_cli.chat.plain_painter import PlainPainter
from lemon_cli.chat.rich_painter import RichPainter
from lemon_cli.chat.shown import (
    Asked,
    Began,
    Block,
    Live,
    Note,
    Piece,
    Said,
    Shown,
    Step,
    Text,
    TurnEnd,
    Waits,
)
from lemon_cli.chat.terminal import color_system, is_dumb
from lemon_core.events import Action, PendingApproval

QUESTION = PendingApproval(
    id="apr_1", tool="bash", action={"command": "make\nrm x"}, decisions=["approve_once", "deny"]
)
EVIL = "a\x1b[2J\x9b5m\x07 &#27;[31m b"
EVERYTHING: list[Shown] = [
    Said(EVIL, (EVIL,), EVIL, is_late=True),
    Waits(EVIL),
    Piece(EVIL),
    Block(f"# {EVIL}\n\n[{EVIL}](http://x/{EVIL})\n\n```\n{EVIL}\n```\n\n| {EVIL} |\n|---|\n| x |"),
    Began("t"),
    Step("t", False, "why", f"+{EVIL}"),
    Asked(QUESTION.model_copy(update={"action": {"command": EVIL}})),
    Note(EVIL, "error"),
    Text(EVIL),
    TurnEnd("m · 1 in"),
]
STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("colors", [None, "standard", "256", "truecolor"])
def test_only_styles_come_out_of_the_rich_painter(colors: str | None) -> None:
    painted = RichPainter(colors).paint(EVERYTHING, 60)  # type: ignore[arg-type]
    bare = STYLE.sub("", painted)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", bare)
    # What the text held of them is there as harmless characters.
    assert "[2J" in bare
    if colors is None:
        codes = {int(n) for found in STYLE.findall(painted) for n in re.findall(r"\d+", found)}
        assert codes <= {0, 1, 2, 3, 4, 7, 9, 22, 23, 24, 27, 29}


def test_the_plain_painter_writes_no_escape_at_all() -> None:
    painted = PlainPainter().paint(EVERYTHING)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", painted)
    assert "answer with 1 once   4 no" in painted


def test_plain_lines_never_begin_in_the_middle_of_the_answer() -> None:
    painter = PlainPainter()
    shown: list[Shown] = [
        Piece("half"),
        Began("`ls`"),
        Step("`ls`", True),
        Piece("rest\n"),
        TurnEnd("m"),
    ]
    assert painter.paint(shown) == "half\n  ▸ `ls`\n  ✓ `ls`\nrest\n  [m]\n"


def test_rich_text_is_set_apart_and_has_no_blanks_at_line_ends() -> None:
    shown: list[Shown] = [
        Said("hi\nyou"),
        Block("**x**"),
        Step("a", True),
        Step("b", True),
        Block("- y\n- z"),
    ]
    bare = STYLE.sub("", RichPainter("256").paint(shown, 60))
    assert bare == "› hi\n  you\n\nx\n\n  ✓ a\n  ✓ b\n\n • y\n • z\n"


def test_answers() -> None:
    assert choices_text(QUESTION) == "1 once   4 no"
    assert [decision_of(t, QUESTION) for t in ("1", "Y ", "n", "2", "yes please")] == [
        "approve_once",
        "approve_once",
        "deny",
        None,
        None,
    ]
    assert question_lines(QUESTION) == ["bash asks:", "make", "rm x"]
    long = QUESTION.model_copy(update={"action": {"command": "x\n" * 210}})
    assert question_lines(long)[-1] == "… 10 more lines"
    edit = {"path": "a.txt", "old_text": "a", "new_text": "b", "mode": "x"}
    change = QUESTION.model_copy(update={"tool": "edit", "action": edit})
    assert question_lines(change) == ["edit asks:", "a.txt", "mode: x", "@@ -1 +1 @@", "-a", "+b"]
    turned = QUESTION.model_copy(update={"action": {"command": "ls \u202e fr- mr"}})
    assert question_lines(turned)[1] == "ls \\u202e fr- mr"


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ({"result": "Edited a\n@@ -1 +1 @@\n-a\n+b"}, "@@ -1 +1 @@\n-a\n+b"),
        # A result that was cut on its way is no source.
        (
            {"result": "Edited a\n@@ -1 +1 @@\n-a…", "args": {"old_text": "a", "new_text": "b"}},
            "@@ -1 +1 @@\n-a\n+b",
        ),
        ({"args": {"content": "a\nb\n"}}, "+a\n+b"),
        ({"args": {"path": "x"}}, None),
        (None, None),
    ],
)
def test_diffs(detail: dict[str, object] | None, expected: str | None) -> None:
    action = Action(id="t", kind="file_change", title="edit", detail=detail)
    assert diff_of(action) == expected
    assert diff_of(action.model_copy(update={"kind": "command"})) is None


def test_a_long_diff_is_cut() -> None:
    detail: dict[str, object] = {"args": {"content": "x\n" * 100}}
    diff = diff_of(Action(id="t", kind="file_change", title="write", detail=detail))
    assert diff is not None
    assert diff.splitlines()[MAX_LINES:] == [" … 60 more lines"]


def test_the_live_view_fits_and_keeps_what_matters_most() -> None:
    live = Live(
        growing="\n".join(f"line {n}" for n in range(50)),
        steps=("`make`",),
        waiting=("a", "b", "c", "d", "e"),
        question=QUESTION,
        question_count=2,
        is_busy=True,
    )
    lines = [text for _, text in live_lines(live, width=40, height=10)]
    assert lines == [
        "line 46",
        "line 47",
        "line 48",
        "line 49",
        "  ▸ `make`",
        "  queued: a",
        "  queued: b",
        "  queued: c",
        "  and 2 more",
        "  1 once   4 no   (and 1 more)",
    ]
    assert [text for _, text in live_lines(live, width=40, height=2)] == lines[-2:]
    busy = live_lines(Live(is_busy=True), width=40, height=5)
    assert [text for _, text in busy] == ["", "  working …"]
    assert live_lines(Live(), width=40, height=5) == []


def test_what_goes_on_stands_where_it_will_be_written() -> None:
    """Nothing moves by a line when a block or a step is over."""

    def lines(live: Live, after_steps: bool = False, height: int = 5) -> list[str]:
        found = live_lines(live, width=40, height=height, after_steps=after_steps)
        return [text for _, text in found]

    assert lines(Live(growing="x")) == lines(Live(growing="x"), after_steps=True) == ["", "x"]
    assert lines(Live(growing="x"), height=1) == ["x"]
    assert lines(Live(steps=("a",))) == ["", "  ▸ a"]
    assert lines(Live(steps=("a",)), after_steps=True) == ["  ▸ a"]
    assert lines(Live(question=QUESTION)) == ["  1 once   4 no"]


def test_lines_wrap_and_are_clipped_by_what_they_take_on_the_screen() -> None:
    assert tail("abcdef\n日本語", 4, 3) == ["ef", "日本", "語"]
    assert tail("abc\n", 4, 3) == ["abc", ""]
    assert wrapped("one two  three", 7) == ["one two", "three"]
    assert wrapped("one twothree", 7) == ["one", "twothre", "e"]
    assert wrapped("    indented", 8) == ["    inde", "nted"]
    assert wrapped("日本 語日本", 5) == ["日本", "語日", "本"]
    assert wrapped("", 5) == [""]
    assert clipped("日本語日本語", 7) == "日本語…"
    assert clipped("a\x1b\nb", 9) == "a b"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm"}, "standard"),
        ({"TERM": "xterm-256color"}, "256"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "truecolor"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, None),
        ({"TERM": "xterm", "NO_COLOR": ""}, "standard"),
    ],
)
def test_colours(environ: dict[str, str], expected: str | None) -> None:
    assert color_system(environ) == expected
    assert [is_dumb({"TERM": t}) for t in ("dumb", "", "xterm")] == [True, True, False]
