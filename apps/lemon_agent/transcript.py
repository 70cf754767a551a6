"""The transcript rule: every tool call has its result right behind it, and no result stands alone.

Providers refuse a request that breaks it, so it is checked before one is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lemon_agent.errors import AgentError
from lemon_agent.types import AgentMessage
from lemon_ai import AssistantMessage, ToolResultMessage, get_tool_calls

ViolationCode = Literal[
    "orphan_tool_result",
    "invalid_tool_call_id",
    "duplicate_tool_call_id",
    "missing_tool_result",
    "unexpected_tool_result",
    "duplicate_tool_result",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """`index` is the message's position; `tool_call_ids` are those that break the rule there."""

    code: ViolationCode
    index: int
    tool_call_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.code} at message {self.index} ({', '.join(map(repr, self.tool_call_ids))})"


class InvalidTranscript(AgentError):
    """A history that no provider accepts; nothing was sent."""

    code = "invalid_tool_transcript"

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = tuple(violations)


def validate_transcript(messages: Sequence[AgentMessage]) -> list[Violation]:
    """Every place where tool calls and tool results do not match, in order; empty when all do."""
    violations: list[Violation] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        if isinstance(message, ToolResultMessage):
            violations.append(Violation("orphan_tool_result", index, (message.tool_call_id,)))
        elif isinstance(message, AssistantMessage) and (calls := get_tool_calls(message)):
            results = list(_results_after(messages, index))
            violations += _check_group([call.id for call in calls], results, index)
            index += len(results)
        index += 1
    return violations


def _results_after(messages: Sequence[AgentMessage], index: int) -> Iterator[str]:
    for message in messages[index + 1 :]:
        if not isinstance(message, ToolResultMessage):
            return
        yield message.tool_call_id


def _check_group(calls: list[str], results: list[str], index: int) -> Iterator[Violation]:
    if blank := tuple(call for call in calls if not call.strip()):
        yield Violation("invalid_tool_call_id", index, blank)
    if repeated := _repeated(calls):
        yield Violation("duplicate_tool_call_id", index, repeated)
    if missing := tuple(call for call in dict.fromkeys(calls) if call not in results):
        yield Violation("missing_tool_result", index, missing)
    seen: set[str] = set()
    for offset, result in enumerate(results, start=1):
        if result not in calls:
            yield Violation("unexpected_tool_result", index + offset, (result,))
        elif result in seen:
            yield Violation("duplicate_tool_result", index + offset, (result,))
        seen.add(result)


def _repeated(ids: list[str]) -> tuple[str, ...]:
    return tuple(call for call in dict.fromkeys(ids) if ids.count(call) > 1)
