"""Equal failing tool calls in a row: the third is warned, the fifth ends the run."""

from __future__ import annotations

from typing import Final, Literal

from lemon_agent.types import AgentToolResult
from lemon_ai import ToolCall
from lemon_core.util import canonical_json

WARN_AT: Final = 3
STOP_AT: Final = 5

Verdict = Literal["ok", "warn", "stop"]


class LoopGuard:
    """Counts failing calls with equal name, arguments and error; any other call resets it."""

    __slots__ = ("_count", "_last")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start clean, as for the next prompt."""
        self._last: tuple[str, bytes, str] | None = None
        self._count = 0

    @property
    def count(self) -> int:
        """How often the last failing call has been made in a row."""
        return self._count

    def observe(self, call: ToolCall, result: AgentToolResult) -> Verdict:
        """Take note of a finished call, in the order of the calls."""
        if not result.is_error:
            self.reset()
            return "ok"
        key = (call.name, _canonical(call), result.text)
        self._count = self._count + 1 if key == self._last else 1
        self._last = key
        if self._count >= STOP_AT:
            return "stop"
        return "warn" if self._count == WARN_AT else "ok"


def warning(count: int) -> str:
    """What the model is told when it has repeated itself."""
    return (
        f"Warning: this call has failed {count} times in a row with the same arguments and the "
        "same error. Repeating it will not help: change the arguments, use another tool or tell "
        f"the user what is wrong. The run is stopped at failure {STOP_AT}."
    )


def _canonical(call: ToolCall) -> bytes:
    try:
        return canonical_json(call.arguments)
    except (TypeError, ValueError):
        return repr(sorted(call.arguments.items())).encode()
