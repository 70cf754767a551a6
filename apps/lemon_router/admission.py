"""The durable record of every admitted run: its id is an idempotency key.

A record is written before the coordinator hears of the run and moves only by compare-and-swap. What
was open when a former process ended is closed at the next start, and nothing runs twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from lemon_core.resume import render_conversation_key
from lemon_core.runs import RunRequest
from lemon_core.store import ABSENT, Store
from lemon_core.util import canonical_json
from lemon_router.requests import Submission

TABLE: Final = "router_admissions"

AdmissionState = Literal["accepted", "started", "submitted", "completed", "failed", "aborted"]
TERMINAL: Final = frozenset({"completed", "failed", "aborted"})


@dataclass(frozen=True, slots=True)
class Admission:
    """One record; `order` sorts the runs of this store by admission."""

    run_id: str
    digest: str
    state: AdmissionState
    session_key: str
    conversation_key: str
    queue_mode: str
    origin: str
    agent_id: str
    prompt: str
    owner: str
    order: int
    created_at_ms: int
    updated_at_ms: int
    node_id: str | None = None
    stream_epoch: str | None = None
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
    request: RunRequest, submission: Submission, *, owner: str, order: int, now_ms: int
) -> Admission:
    """The record of a freshly built submission; `owner` is the caller that may see the run."""
    return Admission(
        run_id=submission.run_id,
        digest=request_digest(request),
        state="accepted",
        session_key=submission.session_key,
        conversation_key=render_conversation_key(submission.conversation_key),
        queue_mode=submission.queue_mode,
        origin=request.origin,
        agent_id=request.agent_id,
        prompt=request.prompt,
        owner=owner,
        order=order,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
    )


class AdmissionStore:
    """The table `router_admissions`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put_new(self, admission: Admission) -> bool:
        """Store a new record; False when the run id is taken. Raises `StoreError`."""
        return await self._store.put_new(TABLE, admission.run_id, _row(admission))

    async def get(self, run_id: str) -> Admission | None:
        """The record of `run_id`."""
        return _record(await self._store.get(TABLE, run_id))

    async def all(self) -> list[Admission]:
        """Every record, oldest first."""
        rows = [_record(value) for _, value in await self._store.list(TABLE)]
        return sorted((row for row in rows if row is not None), key=lambda row: row.order)

    async def advance(self, current: Admission, **changes: object) -> Admission | None:
        """`current` with `changes`, if nobody has changed it since; else None."""
        following = replace(current, **changes)  # type: ignore[arg-type]  # names checked by replace
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
    return Admission(**value) if isinstance(value, Mapping) else None
