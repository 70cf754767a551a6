"""Follow-ups: which are results of background work, which join, and what a receipt says of each.

A result that comes back from a task or a delegated agent is an *async* follow-up. It carries
receipts (`meta.async_followups`), so that whoever started the work can see what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from lemon_core.runs import ExecutionCommand, QueueMode
from lemon_core.tool_policy import intersect
from lemon_router.requests import Submission

ReceiptStatus = Literal["queued", "dispatched_to_active", "fallback_queued"]
_SOURCES: Final[Mapping[str, str]] = {
    "task_auto_followup": "task",
    "delegated_auto_followup": "delegated",
}
_ENTRY_FIELDS: Final = ("task_id", "run_id", "agent_id", "session_key")


def is_promoted(submission: Submission) -> bool:
    """True for a result that is to reach the live run of whoever waits for it."""
    return any(submission.meta.get(key) for key in _SOURCES)


def is_async(submission: Submission) -> bool:
    """True for a result of background work; such messages are never joined with others."""
    return is_promoted(submission) or bool(submission.meta.get("async_followups"))


def mergeable(older: Submission, newer: Submission) -> bool:
    """True when `newer` may join the queued `older`; the time between them is the caller's rule.

    One run has one place, so messages of another session, principal or directory stay apart.
    """
    return (
        older.queue_mode == "followup"
        and not is_async(older)
        and not is_async(newer)
        and older.principal == newer.principal
        and older.session_key == newer.session_key
        and older.command.cwd == newer.command.cwd
    )


def merged(older: Submission, newer: Submission) -> Submission:
    """Both as one run: the newer's id, the older's place, and never more than either may do."""
    old, new = older.command, newer.command
    meta = {**old.meta, **new.meta}
    if new.meta.get("user_msg_id") is None and old.meta.get("user_msg_id") is not None:
        meta["user_msg_id"] = old.meta["user_msg_id"]
    update: dict[str, object] = {
        "prompt": f"{old.prompt}\n{new.prompt}",
        "images": (*old.images, *new.images),
        "resume": new.resume or old.resume,
        "meta": meta,
    }
    if old.tool_policy is not None and new.tool_policy is not None:
        policy = intersect(old.tool_policy, new.tool_policy)
        update["tool_policy"] = policy
        if new.execution_context is not None:
            update["execution_context"] = new.execution_context.narrowed(policy)
    return replace(
        newer,
        command=new.model_copy(update=update),
        conversation_key=older.conversation_key,
        queue_mode="followup",
        resume_is_explicit=older.resume_is_explicit or newer.resume_is_explicit,
        order=older.order,
    )


def steerable(active: Submission, submission: Submission) -> bool:
    """True when the text of `submission` may be handed to the run of `active`.

    A picture cannot be handed over, and a run must not act on a message with more authority than
    the message has.
    """
    command = submission.command
    return (
        not command.images
        and bool(command.prompt.strip())
        and submission.principal == active.principal
        and _permits(command, active.command)
    )


def _permits(command: ExecutionCommand, active: ExecutionCommand) -> bool:
    if command.tool_policy is None or active.tool_policy is None:
        return True
    met = intersect(active.tool_policy, command.tool_policy)
    # The name of a profile says where a policy came from, not what it permits.
    return met.model_copy(update={"profile": None}) == active.tool_policy.model_copy(
        update={"profile": None}
    )


def with_receipt(
    submission: Submission,
    status: ReceiptStatus,
    actual_mode: QueueMode,
    *,
    now_ms: int,
    fallback_mode: QueueMode | None = None,
    active_run_id: str | None = None,
) -> Submission:
    """An async follow-up with what was decided in each of its entries; others are unchanged.

    The mode that was asked for first stays, however often the decision changes.
    """
    if not is_async(submission):
        return submission
    entries = [
        {**entry, "delivery": actual_mode, "delivery_receipt": receipt}
        for entry in _entries(submission)
        for receipt in [
            _receipt(entry, submission.queue_mode, status, actual_mode, now_ms)
            | ({} if fallback_mode is None else {"fallback_mode": fallback_mode})
            | ({} if active_run_id is None else {"active_run_id": active_run_id})
        ]
    ]
    return submission.with_meta(async_followups=entries)


def _receipt(
    entry: Mapping[str, object], asked: QueueMode, status: ReceiptStatus, mode: QueueMode, now: int
) -> dict[str, object]:
    earlier = entry.get("delivery_receipt")
    first = earlier.get("requested_mode") if isinstance(earlier, Mapping) else None
    return {
        "requested_mode": first or asked,
        "actual_mode": mode,
        "status": status,
        "decided_at_ms": now,
    }


def _entries(submission: Submission) -> list[Mapping[str, object]]:
    """The submission's entries; made from the task's or delegation's own keys when it has none."""
    given = submission.meta.get("async_followups")
    if isinstance(given, list | tuple) and given:
        return [entry for entry in given if isinstance(entry, Mapping)]
    for key, source in _SOURCES.items():
        facts = submission.meta.get(key)
        if facts:
            named = facts if isinstance(facts, Mapping) else submission.meta
            fields = {f: named[f] for f in _ENTRY_FIELDS if named.get(f) is not None}
            return [{"source": source, **fields}]
    return []
