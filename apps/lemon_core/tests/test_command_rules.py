"""Command lists (specification lemon_core 6.1, 6.2)."""

from __future__ import annotations

import pytest

from lemon_core.command_rules import overlap
from lemon_core.tool_policy import ToolPolicy

GIT_ONLY = ToolPolicy.parse({"allowed_commands": ["git status", "git log", "ls"]})

ALLOWED = [
    "git status",
    "  git   status -s ",
    '"git" status',
    "git log --format='%h; %s' | ls",
    "git status && git log; ls -l &",
    "git status\ngit log\n",
    "git log > out.txt 2>&1",
    ">out.txt git log",
    "git log $BRANCH",
    "git log --author='a && b'",
    r"git log --grep a\;b",
    'git log "a#b" 2> /dev/null',
]

REFUSED = [
    "",
    "   ",
    "git",
    "git push",
    "gitstatus",
    "git statusx",
    "git status; rm -rf /",
    "git status && rm -rf /",
    "git status | sh",
    "git status & rm x",
    "git status\nrm x",
    "git status;rm x",
    "git status $(rm x)",
    'git status "$(rm x)"',
    "git status `rm x`",
    "git status ${x@P}",
    "git log $'\\'' ; rm x ; echo $'\\''",
    "git log <(rm x)",
    "git log > >(sh)",
    "git log <<E\nit's\nE\nrm x # '",
    "git log <<< x",
    "git status # it's\nrm x # it's",
    "git status \\\n; rm x",
    'git log "$\\\n(rm x)"',
    "git log 'unclosed",
    "git log \\",
    "git log &>x rm y",
    "(git status)",
    "{ git status; }",
    "! git status",
    "if git status; then rm x; fi",
    "PATH=/tmp git status",
    "sudo git status",
    "> out.txt",
    "git status >",
    "git status ;; ls",
    "git status\0; rm x",
    "git status\r; rm x",
]


@pytest.mark.parametrize("command", ALLOWED)
def test_an_allow_list_lets_its_commands_run(command: str) -> None:
    assert GIT_ONLY.command_allowed(command)


@pytest.mark.behaviour("lemon_core.18")
@pytest.mark.parametrize("command", REFUSED)
def test_an_allow_list_refuses_what_is_not_listed_or_not_clear(command: str) -> None:
    assert not GIT_ONLY.command_allowed(command)


def test_an_empty_allow_list_refuses_everything() -> None:
    nothing = ToolPolicy.parse({"allowed_commands": []})
    assert not nothing.command_allowed("true")
    assert not nothing.command_allowed("")


def test_without_lists_everything_may_run() -> None:
    assert ToolPolicy.full_access().command_allowed("rm -rf $(pwd) # anything")


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "sudo rm   -rf x",
        "cd x && rm\t-rf .",
        "rm '-rf' x",
        "r\\m -rf x",
        "echo 'rm -rf",
    ],
)
def test_a_blocked_entry_matches_anywhere(command: str) -> None:
    policy = ToolPolicy.parse({"blocked_commands": ["rm  -rf"]})
    assert not policy.command_allowed(command)
    assert policy.command_allowed("rm x")


def test_a_block_beats_an_allow_list() -> None:
    policy = ToolPolicy.parse({"allowed_commands": ["git"], "blocked_commands": ["push"]})
    assert policy.command_allowed("git status")
    assert not policy.command_allowed("git push")


def test_the_longer_of_two_overlapping_entries_stays() -> None:
    assert overlap(["git", "ls -l"], ["git status", "git log", "ls"]) == (
        "git log",
        "git status",
        "ls -l",
    )
    assert overlap(["git stat"], ["git status"]) == ()
