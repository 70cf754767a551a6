"""What became of a message, in one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon_core.bridges import SubmitResult
from lemon_core.events import RunAbsorbed
from lemon_core.runs import QueueMode

MERGE: Final = "followup"
NOT_TAKEN: Final = "the working run did not take it: queued"


def taken_note(result: SubmitResult, mode: QueueMode) -> str | None:
    """How the router took the message; None when it simply starts."""
    detail: Mapping[str, object] = result.detail or {}
    if result.duplicate:
        return f"{result.run_id} was sent before: this is what becomes of it"
    active = detail.get("active_run_id")
    match detail.get("disposition"):
        case "queued" if mode == "interrupt":
            return f"{active} is interrupted: this is next"
        case "queued":
            position = detail.get("position")
            place = "next" if position in (1, None) else f"number {position} in line"
            return f"queued: {place}, after {active}" if active else f"queued: {place}"
        case "merged":
            merged = detail.get("merged")
            runs = ", ".join(map(str, merged)) if isinstance(merged, list | tuple) else merged
            return f"merged with the message that was waiting ({runs})"
        case "steering":
            return f"offered to {active}, which is working"
        case _:
            return None


def absorbed_note(absorbed: RunAbsorbed) -> str:
    """What it means that the run became part of another."""
    if absorbed.mode == MERGE:
        return f"merged into {absorbed.absorbed_by}: its answer follows"
    return f"taken by {absorbed.absorbed_by}: its answer follows"
