"""The system prompt: small, and the same for every run of a directory: providers cache it.

What never changes comes first, what changes with the day last. Text that can change between two
turns of a conversation is no part of it: it goes into the user's message (`recalled.py`).
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from lemon_agent.contributors import Section
from lemon_agent.tool_registry import SessionScope

IDENTITY: Final = "You are Lemon, an agent that works with the user's files and answers questions."

# Each line is for runs that have all the tools it names.
_GUIDANCE: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"grep", "find"}), "Find things with grep and find."),
    (frozenset({"read", "edit"}), "Read a file before you change it, and change it with edit."),
    (frozenset({"write"}), "Use write for new files."),
    (frozenset({"bash"}), "Run programs and tests with bash, and check your work with them."),
    (frozenset({"task"}), "Give work that stands alone to a task, and read its result."),
)
_MANNERS: Final = (
    "Do what was asked and no more. Say plainly what you did, what you could not do, and what you "
    "did not check."
)
_SUBAGENT: Final = (
    "You work for another agent. Your last message is all that it reads: make it complete. Do not "
    "change MEMORY.md unless you were asked to."
)
_EMBODY: Final = "SOUL.md says who you are: be that."


@dataclass(frozen=True, slots=True)
class PromptParts:
    """What the prompt of a run with tools is made of besides the lines that are always the same.

    `own` is what the caller or the profile puts in front. `home` holds the assistant's files and
    `instructions` those of the project, each as name and text.
    """

    cwd: str
    tool_names: Collection[str]
    today: date
    own: str | None = None
    scope: SessionScope = "main"
    home_dir: str | None = None
    home: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    instructions: Sequence[tuple[str, str]] = ()


def plain_prompt(own: str | None) -> str:
    """The prompt of a run without tools: a small model, or a policy that permits none."""
    return "\n\n".join(filter(None, (own.strip() if own else "", IDENTITY)))


def system_prompt(parts: PromptParts) -> str:
    """The prompt of a run; one identity line when it has no tools."""
    if not parts.tool_names:
        return plain_prompt(parts.own)
    known = frozenset(parts.tool_names)
    guidance = [text for names, text in _GUIDANCE if names <= known]
    pieces = [
        plain_prompt(parts.own),
        " ".join((*guidance, _MANNERS)),
        _SUBAGENT if parts.scope == "subagent" else "",
        *_home(parts),
        *(f"## {section.title}\n{section.body}" for section in parts.sections),
        *(f"<!-- From: {path} -->\n{text}" for path, text in parts.instructions),
        f"Working directory: {parts.cwd}\nSystem: {platform.system()}\nDate: {parts.today}",
    ]
    return "\n\n".join(filter(None, pieces))


def _home(parts: PromptParts) -> list[str]:
    if not parts.home:
        return []
    embody = [_EMBODY] if any(name == "SOUL.md" for name, _ in parts.home) else []
    head = " ".join((f"Your own files are in {parts.home_dir}.", *embody))
    return [head, *(f"## {name}\n{text}" for name, text in parts.home)]
