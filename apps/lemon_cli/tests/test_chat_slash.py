"""Which lines are commands, and how they are completed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_cli.chat import commands
from lemon_cli.chat.completion import is_completing, paths
from lemon_cli.chat.models import model_names
from lemon_cli.chat.own_commands import own_commands
from lemon_cli.chat.slash import (
    COMMANDS,
    Call,
    Candidate,
    Unknown,
    complete,
    help_text,
    parse,
    takes_more,
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/help", Call("help", "")),
        ("/steer  look left ", Call("steer", "look left")),
        ("/steer two\nlines", Call("steer", "two\nlines")),
        ("/QUIT", Call("quit", "")),
        ("/exit", Call("quit", "")),
        ("/stat", Unknown("stat", "status")),
        ("/xyzzy", Unknown("xyzzy", None)),
        ("/etc/hosts is what?", None),
        ("//help", None),
        ("hello /help", None),
        ("/", None),
        ("/ help", None),
    ],
)
def test_parse(line: str, expected: object) -> None:
    assert parse(line) == expected


def test_every_command_is_in_the_help_and_does_something() -> None:
    sends = {"steer", "interrupt", "quit", "abort", "drop"}
    assert {c.name for c in COMMANDS} - sends == set(commands._WORK)
    assert all(f"/{c.name}" in help_text() for c in COMMANDS)


def test_completion_of_names_and_arguments() -> None:
    words = {"model": lambda: ("openai:gpt-5", "local:small")}
    names = [candidate.text for candidate in complete("/se", words)]
    assert names == ["/session", "/sessions"]
    assert complete("/model gp", words) == [Candidate("openai:gpt-5", 2)]
    assert complete("/model lo", words) == [Candidate("local:small", 2)]
    assert complete("/status x", words) == ()
    assert complete("no /mo", words) == ()


def test_completion_of_paths(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("src/main.py", "src/map.txt", "sum.png", ".hidden", "with space", "b\x1bad"):
        (tmp_path / name).touch()

    def found(before: str) -> list[str]:
        return [candidate.text for candidate in paths(before, tmp_path, tmp_path)]

    assert found("look at @s") == ["src/", "sum.png"]
    assert found("look at @src/ma") == ["main.py", "map.txt"]
    assert found("@~/su") == ["sum.png"]
    assert found("@") == ["src/", "sum.png"]
    assert found("@.h") == [".hidden"]
    assert found("/image su") == ["sum.png"]
    assert found("@missing/x") == []
    assert found("plain su") == []


@pytest.mark.parametrize(
    ("before", "expected"),
    [("/mo", True), ("see @sr", True), ("see", False), ("a@b", False), ("/x\ny", False)],
)
def test_where_completions_show_by_themselves(before: str, expected: bool) -> None:
    assert is_completing(before) is expected


def test_a_completed_name_goes_on_where_something_follows() -> None:
    lines = ("/model", "/help", "/mod", "model", "/model x", "")
    assert [takes_more(line) for line in lines] == [True, *[False] * 5]


def test_models_of_the_provider_in_use_come_first() -> None:
    every = model_names()
    first = model_names("groq:x")
    groq = [name for name in every if name.startswith("groq:")]
    assert list(first[: len(groq)]) == groq != list(every[: len(groq)])
    assert sorted(first) == sorted(every)


def test_commands_that_the_user_has_written_are_known_by_their_files(tmp_path: Path) -> None:
    """Specification coding_agent 4: the agent's own folder and the project's."""
    agent, cwd = tmp_path / "agent", tmp_path / "project"
    assert own_commands(agent, cwd) == []
    for folder, name in ((agent, "deploy"), (cwd / ".lemon", "review"), (agent, "review")):
        (folder / "command").mkdir(parents=True, exist_ok=True)
        (folder / "command" / f"{name}.md").write_text("x")
    assert own_commands(agent, cwd) == ["deploy", "review"]
    found = complete("/dep", {}, lambda: ["deploy", "model"])
    assert [(each.text, each.meta) for each in found] == [("/deploy", "your own")]
