"""The system prompt is small and stable (specification coding_agent 4 and 5)."""

from __future__ import annotations

import re

from coding_agent.prompt import _GUIDANCE, IDENTITY, system_prompt
from coding_agent.registry import ToolRegistry
from coding_agent.tools.toolset import ShellSettings

NAMES = [definition.name for definition in ToolRegistry(ShellSettings()).definitions]


def test_without_tools_it_is_one_identity_line() -> None:
    assert system_prompt(None, "/project", []) == IDENTITY
    assert "\n" not in IDENTITY
    assert system_prompt("Speak French.", "/project", []) == f"Speak French.\n\n{IDENTITY}"


def test_with_tools_it_names_the_directory_and_how_to_work() -> None:
    prompt = system_prompt(None, "/project/dir", NAMES)
    assert prompt.startswith(f"{IDENTITY}\n\nWorking directory: /project/dir\n")
    assert len(prompt) < 600
    assert prompt == system_prompt("  ", "/project/dir", NAMES[::-1])


def test_every_tool_that_is_named_is_registered_and_permitted() -> None:
    assert frozenset().union(*(names for names, _ in _GUIDANCE)) <= set(NAMES)
    for names, text in _GUIDANCE:
        assert all(re.search(rf"\b{name}\b", text) for name in names if name != "read")
    assert not re.search(r"\bbash\b", system_prompt(None, "/", ["read", "grep", "ls"]))
