"""Shell lines, and what of them is asked about (specification coding_agent 6 and 7)."""

from __future__ import annotations

import pytest

from coding_agent.tests.askers import Answers, asker
from coding_agent.tools.command_text import Unreadable, canonical, inner_line
from coding_agent.tools.shell import question_of
from coding_agent.tools.toolset import Question
from lemon_agent import AbortSignal, AgentTool, AgentToolResult, ToolCallContext
from lemon_core.approvals import Approved


@pytest.mark.parametrize(
    ("line", "one_spelling"),
    [
        ("ls  -l", "ls -l"),
        ("'ls' \"-l\"", "ls -l"),
        ("bash -c 'ls -l'", "ls -l"),
        ("/bin/sh -c \"bash -c 'rm x'\"", "rm x"),
        ("a && b||c;d|e & f", "a && b || c; d | e & f"),
        ("a\nb", "a; b"),
        ("A=1 go > out 2>&1 < in", "A=1 go > out 2>& 1 < in"),
        ("echo 'a b' \"c $HOME\" *.py ~/x", "echo 'a b' \"c $HOME\" *.py ~/x"),
        ("cd x && sh -c 'make all' && y", "cd x && make all && y"),
        ("sh -c 'a; b'", "a; b"),
        # A shell that stays: without it the line would mean something else.
        ("sh -c 'cd x'; rm y", "sh -c 'cd x'; rm y"),
        ("x && sh -c 'a; b'", "x && sh -c 'a; b'"),
        ("sh -c 'echo $0'", "sh -c 'echo $0'"),
        ("sudo sh -c 'a'", "sudo sh -c a"),
        ("timeout 5s nice -n 5 nohup command ls -l", "ls -l"),
        ("timeout 5 sh -c 'ls  -l'", "ls -l"),
        ("timeout -k 5 9 ls", "timeout -k 5 9 ls"),
        ("env A=1 ls", "env A=1 ls"),
        ("A=1 nice ls", "A=1 nice ls"),
        ("sh -x -c a", "sh -x -c a"),
    ],
)
def test_lines_that_mean_the_same_have_one_spelling(line: str, one_spelling: str) -> None:
    assert canonical(inner_line(line)) == one_spelling


@pytest.mark.parametrize(
    "line",
    [
        "echo $(x)",
        "echo `x`",
        'echo "$(x)"',
        "echo ${x:-$(y)}",
        "echo $'a'",
        "cat <<E\nx\nE",
        "cat <<< x",
        "a &> b",
        "(a)",
        "f() { a; }",
        "{ a; }",
        "for i in 1; do a; done",
        "if a; then b; fi",
        "eval a",
        "sh -c 'echo $(x)'",
        "sudo bash -ec 'for i in 1; do x; done'",
        'sh -c "$SCRIPT"',
        "a 'b",
        'a "b',
        "a # b",
        "a \\\n b",
        "a \\",
        "a >",
        "&& a",
        "diff <(a) b",
        "a\0",
        "a" * 20_001,
    ],
)
def test_what_the_shell_might_read_otherwise_is_not_read(line: str) -> None:
    with pytest.raises(Unreadable):
        inner_line(line)
    assert question_of({"command": line}) == Question({"command": line}, is_grantable=False)


def test_a_question_is_about_the_command_that_runs() -> None:
    assert question_of({"command": "sh -c 'ls'", "timeout_ms": 5}) == Question({"command": "ls"})
    asked = question_of({"command": "x", "background": True})
    assert asked == Question({"command": "x", "background": True})


@pytest.mark.anyio
@pytest.mark.behaviour("coding_agent.104")
async def test_a_line_that_cannot_be_read_takes_no_grant_and_gives_none() -> None:
    answers = Answers(Approved("once"))

    async def body(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("done")

    tool = asker(answers, can_ask=True).gated(AgentTool("bash", "", {}, body), question_of)
    for command in ("ls", "ls $(x)"):
        context = ToolCallContext("c", {"command": command}, AbortSignal(), lambda _: None)
        assert (await tool.execute(context)).text == "done"
    readable, unreadable = (request.grants for request in answers.asked)
    assert readable.scopes
    assert "approve_session" in readable.decisions
    assert (unreadable.scopes, unreadable.wildcard) == (frozenset(), False)
    assert unreadable.decisions == {"approve_once", "deny"}
