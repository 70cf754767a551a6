"""The system prompt is small and stable (specification coding_agent 4 and 5)."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from coding_agent.prompt import _GUIDANCE, IDENTITY, PromptParts, plain_prompt, system_prompt
from coding_agent.services import services
from coding_agent.tests.scene import scene
from lemon_agent.contributors import Section
from lemon_ai.testing import Turn
from lemon_ai.tokens import estimate_chars

NAMES = ["read", "write", "edit", "ls", "find", "grep", "bash", "task"]
TODAY = date(2026, 11, 30)
# What the README says; raise it there and here, knowingly.
BASE_TOKENS = 150
WITH_HOME_TOKENS = 550
SCHEMA_TOKENS = 4_200


def prompt(**changes: object) -> str:
    parts = {"cwd": "/project", "tool_names": NAMES, "today": TODAY, **changes}
    return system_prompt(PromptParts(**parts))  # type: ignore[arg-type]  # a test's shorthand


def test_without_tools_it_is_one_identity_line() -> None:
    assert prompt(tool_names=[], instructions=[("a", "b")]) == IDENTITY == plain_prompt(None)
    assert "\n" not in IDENTITY
    assert plain_prompt(" Speak French. ") == f"Speak French.\n\n{IDENTITY}"


def test_what_changes_with_the_day_comes_last() -> None:
    text = prompt(home_dir="/h", home=[("SOUL.md", "Be kind.")])
    assert text == prompt(
        own="  ", tool_names=NAMES[::-1], home_dir="/h", home=[("SOUL.md", "Be kind.")]
    )
    assert text.startswith(f"{IDENTITY}\n\nFind things")
    stable, _, last = text.rpartition("\n\n")
    assert last.startswith("Working directory: /project\nSystem: ")
    assert last.endswith("\nDate: 2026-11-30")
    tomorrow = prompt(home_dir="/h", home=[("SOUL.md", "Be kind.")], today=date(2026, 12, 1))
    assert tomorrow.startswith(stable)


def test_the_parts_stand_in_their_order() -> None:
    text = prompt(
        own="OWN",
        scope="subagent",
        home_dir="/home/lemon",
        home=[("SOUL.md", "SOUL"), ("USER.md", "USER")],
        sections=[Section("Skills", "SKILLS")],
        instructions=[("/project/AGENTS.md", "RULES")],
    )
    places = [
        text.index(part)
        for part in (
            "OWN\n\n",
            IDENTITY,
            "You work for another agent.",
            "Your own files are in /home/lemon. SOUL.md says who you are",
            "## SOUL.md\nSOUL\n\n## USER.md\nUSER",
            "## Skills\nSKILLS",
            "<!-- From: /project/AGENTS.md -->\nRULES",
            "Working directory:",
        )
    ]
    assert places == sorted(places)
    assert "SOUL.md says" not in prompt(home_dir="/h", home=[("TOOLS.md", "x")])


def test_every_tool_that_is_named_is_known_and_permitted() -> None:
    assert frozenset().union(*(names for names, _ in _GUIDANCE)) <= set(NAMES)
    for names, text in _GUIDANCE:
        assert all(re.search(rf"\b{name}\b", text) for name in names if name != "read")
    assert not re.search(r"\bbash\b", prompt(tool_names=["read", "grep", "ls"]))


@pytest.mark.anyio
@pytest.mark.behaviour("coding_agent.122")
async def test_the_prompt_is_as_small_as_the_readme_says(tmp_path: Path) -> None:
    """And two runs of one directory are sent the same bytes in front of their messages."""
    assert estimate_chars(prompt()) <= BASE_TOKENS
    async with scene(tmp_path, Turn(text="one"), Turn(text="two")) as here:
        await here.run("first")
        await here.run("other")
        one, other = (request.body for request in here.server.requests)
        assert one["messages"][0] == other["messages"][0]
        assert one["tools"] == other["tools"]
        assert list(one) == list(other)
        whole = here.shown()[0][1].replace(str(tmp_path), "/home/me")
        assert estimate_chars(whole) <= WITH_HOME_TOKENS
        assert estimate_chars(json.dumps(one["tools"])) <= SCHEMA_TOKENS
        home = here.runtime.service(services).prompt_files.home_dir
        assert (home / "SOUL.md").is_file()
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert f"at most {BASE_TOKENS} tokens" in readme
    assert f"at most {WITH_HOME_TOKENS} tokens" in readme
    assert f"at most {SCHEMA_TOKENS:,} tokens" in readme
