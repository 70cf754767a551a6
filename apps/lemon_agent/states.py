"""The states of the loop, and the moves between them.

A move outside the table is a programming error. `finalizing` and `aborted` are the ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from lemon_agent.errors import InvalidLoopTransition


class LoopState(StrEnum):
    """What the loop is doing."""

    INITIALIZING = "initializing"
    AWAIT_MODEL = "await_model"
    NORMALIZING_RESPONSE = "normalizing_response"
    EXECUTING_TOOLS = "executing_tools"
    AWAITING_TOOL_RESULTS = "awaiting_tool_results"
    RECOVERING_PROVIDER_ERROR = "recovering_provider_error"
    COMPRESSING_CONTEXT = "compressing_context"
    FINALIZING = "finalizing"
    ABORTED = "aborted"


S = LoopState

NEXT: Final[Mapping[LoopState | None, frozenset[LoopState]]] = {
    None: frozenset({S.INITIALIZING}),
    S.INITIALIZING: frozenset({S.AWAIT_MODEL, S.COMPRESSING_CONTEXT, S.FINALIZING}),
    S.AWAIT_MODEL: frozenset(
        {
            S.NORMALIZING_RESPONSE,
            S.COMPRESSING_CONTEXT,
            S.ABORTED,
            S.RECOVERING_PROVIDER_ERROR,
        },
    ),
    S.NORMALIZING_RESPONSE: frozenset(
        {
            S.AWAIT_MODEL,
            S.COMPRESSING_CONTEXT,
            S.EXECUTING_TOOLS,
            S.RECOVERING_PROVIDER_ERROR,
            S.FINALIZING,
            S.ABORTED,
        },
    ),
    S.EXECUTING_TOOLS: frozenset({S.AWAITING_TOOL_RESULTS, S.ABORTED}),
    S.AWAITING_TOOL_RESULTS: frozenset(
        {S.AWAIT_MODEL, S.COMPRESSING_CONTEXT, S.FINALIZING, S.ABORTED}
    ),
    S.COMPRESSING_CONTEXT: frozenset({S.AWAIT_MODEL, S.RECOVERING_PROVIDER_ERROR, S.ABORTED}),
    S.RECOVERING_PROVIDER_ERROR: frozenset({S.FINALIZING}),
    S.FINALIZING: frozenset(),
    S.ABORTED: frozenset(),
}


def check_transition(origin: LoopState | None, target: LoopState) -> None:
    """Raise `InvalidLoopTransition` for a move that the table does not have."""
    if target not in NEXT[origin]:
        raise InvalidLoopTransition(origin, target)
