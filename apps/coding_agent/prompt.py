"""The system prompt: small, and the same for every run of a directory: providers cache it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

IDENTITY: Final = "You are Lemon, an agent that works with the user's files and answers questions."

# Each line is for runs that have all the tools it names.
_GUIDANCE: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"grep", "ls"}), "Find things with grep and ls."),
    (frozenset({"read", "edit"}), "Read a file before you change it, and change it with edit."),
    (frozenset({"write"}), "Use write for new files."),
    (frozenset({"bash"}), "Run programs and tests with bash, and check your work with them."),
)
_MANNERS: Final = (
    "Do what was asked and no more. Say plainly what you did, what you could not do, and what you "
    "did not check."
)


def system_prompt(own: str | None, cwd: str, tool_names: Collection[str]) -> str:
    """The prompt of a run; `own` is what the caller or the profile puts in front of it.

    Without tools (a small model, or a policy that permits none) it is one identity line.
    """
    parts = [own.strip() if own else "", IDENTITY]
    if tool_names:
        known = frozenset(tool_names)
        guidance = [text for names, text in _GUIDANCE if names <= known]
        parts.append(f"Working directory: {cwd}\n" + " ".join((*guidance, _MANNERS)))
    return "\n\n".join(filter(None, parts))
