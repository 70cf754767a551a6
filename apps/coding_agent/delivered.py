"""Messages that come from the system and not from the user: results of work in the background.

The model reads them as a user's message that says so; the session file keeps what they were made
from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from pydantic import Field

from lemon_ai import UserMessage

ASYNC_FOLLOWUP: Final = "async_followup"
HEADLINE: Final = "[SYSTEM-DELIVERED ASYNC COMPLETION - NOT A USER MESSAGE]"
_TOLD: Final = ("source", "task_id", "run_id", "agent_id", "session_key", "status", "delivery")


class DeliveredMessage(UserMessage):
    """A result that was delivered into the conversation; `text` and `details` are what came."""

    text: str
    details: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, text: str, details: Mapping[str, object], timestamp: int | None = None) -> Self:
        """The message as the model reads it."""
        lines = [f"{name}: {details[name]}" for name in _TOLD if details.get(name)]
        content = "\n".join([HEADLINE, *lines, "---", _fenced(text)])
        when = {} if timestamp is None else {"timestamp": timestamp}
        return cls(content=content, text=text, details=dict(details), **when)


def followup_details(followups: Sequence[object]) -> dict[str, object]:
    """What `meta.async_followups` says about where a result comes from: the first one's facts."""
    first = followups[0] if followups else None
    if not isinstance(first, Mapping):
        return {}
    return {str(key): value for key, value in first.items() if key in _TOLD}


def _fenced(text: str) -> str:
    """`text` in a fence that is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
