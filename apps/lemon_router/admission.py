"""The durable record of every admitted run: its id is an idempotency key.

A record is written before the coordinator hears of the run and moves only by compare-and-swap. It
holds the whole submission, so that a later process can go on with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

import orjson

from lemon_core.execution_context import ExecutionContext
from lemon_core.resume import ResumeToken, parse_conversation_key, render_conversation_key
from lemon_core.runs import ExecutionCommand, QueueMode, RunRequest
from lemon_core.store import ABSENT, Store, StoreCorrupt, UnsupportedValue
from lemon_core.tool_policy import ToolPolicy
from lemon_core.util import canonical_json
from lemon_router.followups import merged
from lemon_router.requests import Submission

TABLE: Final = "router_admissions"

AdmissionState = Literal[
    "accepted", "queued", "started", "submitted", "completed", "failed", "aborted", "absorbed"
]
"""`queued` and `started` are only shown: what is stored goes from `accepted` to `submitted`. That
saves two writes of each run; whether it may have had effects is told by its begin mark."""
TERMINAL: Final = frozenset({"completed", "failed", "aborted", "absorbed"})
MERGED: Final = "followup"
"""The mode in which a record is absorbed whose text became part of a queued message."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One record; `order` sorts the runs of this store by admission.

    `owner` is the caller that may see the run, `router` the router process that cares for it.
    `context` and `command` are JSON that `revived`
    reads (one text is cheaper to store than a tree); an ended run has no `command`, and one whose
    session was reset has no text at all. `offered_to` is the run that may have taken this one's
    text; `absorbed_by` and `absorbed_as` name the run that took
    this one's text, and the mode in which it did.
    """

    run_id: str
    digest: str
    state: AdmissionState
    session_key: str
    conversation_key: str
    queue_mode: QueueMode
    origin: str
    agent_id: str
    owner: str
    order: int
    created_at_ms: int
    updated_at_ms: int
    router: str = ""
    prompt: str = ""
    context: str = ""
    command: str = ""
    model: str | None = None
    node_id: str | None = None
    stream_epoch: str | None = None
    last_event_seq: int = 0
    offered_to: str | None = None
    absorbed_by: str | None = None
    absorbed_as: str | None = None
    ok: bool | None = None
    error: object = None

    @property
    def terminal(self) -> bool:
        """True when the run has its end."""
        return self.state in TERMINAL


def request_digest(request: RunRequest) -> str:
    """SHA-256 (hex) of what a caller asked for; a second request under one id must agree in it."""
    parts = {
        "session_key": request.session_key,
        "agent_id": request.agent_id,
        "prompt": request.prompt,
        "images": [[image.mime_type, image.data] for image in request.images],
        "queue_mode": request.queue_mode,
        "model": request.model,
        "cwd": request.cwd,
        "resume": None if request.resume is None else request.resume.format_plain(),
        "tool_policy": None if request.tool_policy is None else request.tool_policy.dump(),
    }
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def new_admission(
    digest: str, submission: Submission, *, owner: str, router: str, now_ms: int
) -> Admission:
    """The record of a freshly built submission."""
    model = submission.meta.get("model")
    agent_id = submission.meta.get("agent_id")
    return Admission(
        run_id=submission.run_id,
        digest=digest,
        state="accepted",
        session_key=submission.session_key,
        conversation_key=render_conversation_key(submission.conversation_key),
        queue_mode=submission.queue_mode,
        origin=submission.origin,
        agent_id=str(agent_id or ""),
        owner=owner,
        router=router,
        order=submission.order,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        prompt=submission.command.prompt,
        context=_context_text(submission.command.execution_context),
        command=_command_text(submission),
        model=model if isinstance(model, str) else None,
    )


def _context_text(context: ExecutionContext | None) -> str:
    return "" if context is None else _json(context.model_dump(mode="json"))


def _command_text(submission: Submission) -> str:
    command = submission.command
    return _json(
        {
            "images": [image.model_dump() for image in command.images],
            "cwd": command.cwd,
            "resume": None if command.resume is None else command.resume.model_dump(),
            "explicit": submission.resume_is_explicit,
            "lane": command.lane,
            "meta": command.meta,
        }
    )


def _json(value: object) -> str:
    """`value` as JSON; raises `UnsupportedValue` for what would not come back equal."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        pass
    try:
        # Half a surrogate pair is legal in JSON escapes, not in UTF-8.
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise UnsupportedValue(f"the request cannot be stored: {exc}") from exc


def revived(record: Admission) -> Submission:
    """The submission of `record`, as it was admitted; raises `StoreCorrupt`."""
    context = context_of(record)
    try:
        stored = json.loads(record.command)
        key = parse_conversation_key(record.conversation_key)
        resume = stored["resume"]
        command = ExecutionCommand(
            run_id=record.run_id,
            session_key=record.session_key,
            prompt=record.prompt,
            conversation_key=key,
            execution_context=context,
            images=stored["images"],
            cwd=stored["cwd"],
            resume=None if resume is None else ResumeToken.model_validate(resume),
            lane=stored["lane"],
            tool_policy=context.capabilities,
            meta=stored["meta"],
        )
    except (LookupError, ValueError, TypeError) as exc:
        raise StoreCorrupt(f"the admission of {record.run_id} is damaged: {exc}") from exc
    return Submission(
        command,
        key,
        record.queue_mode,
        stored.get("explicit") is True,
        order=record.order,
        origin=record.origin,
    )


def revived_whole(record: Admission, joined: Mapping[str, list[Admission]]) -> Submission:
    """As `revived`, with what had joined it before it started; `joined` is by absorbing run."""
    whole = revived(record)
    for older in joined.get(record.run_id, ()):
        whole = merged(revived_whole(older, joined), whole)
    return whole


def joined_by_run(records: list[Admission]) -> dict[str, list[Admission]]:
    """The records whose text became part of a queued message, by the run that took it."""
    joined: dict[str, list[Admission]] = {}
    for record in records:
        if record.absorbed_by is not None and record.absorbed_as == MERGED:
            joined.setdefault(record.absorbed_by, []).append(record)
    return joined


def context_of(record: Admission) -> ExecutionContext:
    """The authority that the run of `record` had; raises `StoreCorrupt`."""
    try:
        value = json.loads(record.context)
        capabilities = ToolPolicy.parse(value["capabilities"])
        return ExecutionContext.model_validate({**value, "capabilities": capabilities})
    except (LookupError, ValueError, TypeError) as exc:
        raise StoreCorrupt(f"the admission of {record.run_id} is damaged: {exc}") from exc


class AdmissionStore:
    """The table `router_admissions`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put_new(self, admission: Admission) -> bool:
        """Store a new record; False when the run id is taken. Raises `StoreError`."""
        return await self._store.put_new(TABLE, admission.run_id, _row(admission))

    async def get(self, run_id: str) -> Admission | None:
        """The record of `run_id`. Raises `StoreError`: an unreadable one is not absent."""
        return _record(await self._store.load(TABLE, run_id))

    async def all(self) -> list[Admission]:
        """Every record, oldest first. Raises `StoreError`."""
        rows = [_record(value) for _, value in await self._store.load_all(TABLE)]
        return sorted((row for row in rows if row is not None), key=lambda row: row.order)

    async def advance(self, current: Admission, **changes: object) -> Admission | None:
        """`current` with `changes`, if nobody has changed it since; else None."""
        following = replace(current, **changes)  # type: ignore[arg-type]  # names checked by replace
        if following.terminal and following.state != "absorbed":
            # The pictures of what is over are of no use to anybody.
            following = replace(following, command="")
        swapped = await self._store.compare_and_swap(
            TABLE, current.run_id, _row(current), _row(following)
        )
        return following if swapped else None

    async def withdraw(self, admission: Admission) -> None:
        """Remove a record whose run was refused after all, unless it has moved on."""
        await self._store.compare_and_swap(TABLE, admission.run_id, _row(admission), ABSENT)

    async def sweep(self, *, now_ms: int, retention_ms: int) -> int:
        """Delete terminal records older than `retention_ms`; the number deleted."""
        old = [
            row
            for row in await self.all()
            if row.terminal and now_ms - row.updated_at_ms > retention_ms
        ]
        for row in old:
            await self.withdraw(row)
        return len(old)


_FIELDS: Final = tuple(field.name for field in fields(Admission))


def _row(admission: Admission) -> dict[str, object]:
    """What the store writes; not a copy of each value, for the store encodes them at once."""
    return {name: getattr(admission, name) for name in _FIELDS}


def _record(value: object) -> Admission | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise StoreCorrupt("a stored admission is not a table")
    try:
        return Admission(**value)
    except TypeError as exc:
        raise StoreCorrupt(f"a stored admission cannot be read: {exc}") from exc
