"""Boards and tasks as they are stored, and the rules of a lease; plain functions only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

BoardStatus = Literal["active", "archived"]
DEFAULT_COLUMNS: Final = ("todo", "doing", "review", "done")
LEASE: Final = "kanbanLease"
FAILURE: Final = "lastFailure"
ATTEMPTS: Final = "kanbanAttempts"


@dataclass(frozen=True, slots=True)
class Board:
    """A board; a task's status is one of its columns."""

    id: str
    name: str
    created_at_ms: int
    updated_at_ms: int
    status: BoardStatus = "active"
    workspace: str | None = None
    owner: str | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    archived_at_ms: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> str:
        """The column of what is finished: `done`, else the last one."""
        return "done" if "done" in self.columns else self.columns[-1]

    @property
    def doing(self) -> str:
        """The column of what is worked on: `doing`, else the first one."""
        return "doing" if "doing" in self.columns else self.columns[0]

    @property
    def failed(self) -> str:
        """The column of what went wrong: `blocked`, else the first one."""
        return "blocked" if "blocked" in self.columns else self.columns[0]


@dataclass(frozen=True, slots=True)
class Task:
    """A task; its lease and its last failure are in `meta`."""

    id: str
    board_id: str
    title: str
    status: str
    created_at_ms: int
    updated_at_ms: int
    description: str = ""
    priority: str = "normal"
    assignee: str | None = None
    worker_profile: str | None = None
    session_key: str | None = None
    run_id: str | None = None
    depends_on: tuple[str, ...] = ()
    comments: tuple[dict[str, Any], ...] = ()
    completed_at_ms: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def lease(self) -> Mapping[str, Any] | None:
        """Who works on it: `id, workerId, leasedAtMs, expiresAtMs, attempt`."""
        lease = self.meta.get(LEASE)
        return lease if isinstance(lease, Mapping) else None

    def is_leased_by(self, worker_id: str) -> bool:
        """Whether this worker holds it."""
        return self.lease is not None and self.lease.get("workerId") == worker_id

    def has_expired(self, now_ms: int) -> bool:
        """Whether its lease is over."""
        if self.lease is None:
            return False
        until = self.lease.get("expiresAtMs")
        return not isinstance(until, int) or until <= now_ms


def next_task(tasks: Sequence[Task], board: Board, from_status: str | None = None) -> Task | None:
    """The oldest task in the column that nobody holds and whose dependencies are all done."""
    column = from_status or board.columns[0]
    done = {task.id for task in tasks if task.status == board.done}
    ready = [
        task
        for task in tasks
        if task.status == column and task.lease is None and _is_ready(task, done)
    ]
    return min(ready, key=lambda task: (task.created_at_ms, task.id), default=None)


def leased(
    task: Task, board: Board, worker_id: str, *, lease_id: str, now_ms: int, lease_ms: int
) -> Task:
    """The task with a new lease, in the column of what is worked on."""
    attempt = _count(task.meta.get(ATTEMPTS)) + 1
    lease = {
        "id": lease_id,
        "workerId": worker_id,
        "leasedAtMs": now_ms,
        "expiresAtMs": now_ms + lease_ms,
        "attempt": attempt,
    }
    meta = {**task.meta, LEASE: lease, ATTEMPTS: attempt}
    return replace(task, status=board.doing, meta=meta, updated_at_ms=now_ms)


def renewed(task: Task, *, now_ms: int, lease_ms: int) -> Task:
    """The task with its lease running from now."""
    lease = {**(task.lease or {}), "expiresAtMs": now_ms + lease_ms}
    return replace(task, meta={**task.meta, LEASE: lease}, updated_at_ms=now_ms)


def without_lease(task: Task, status: str, now_ms: int) -> Task:
    """The task that nobody holds, in this column; how often it was tried is kept."""
    meta = {key: value for key, value in task.meta.items() if key != LEASE}
    return replace(task, status=status, meta=meta, updated_at_ms=now_ms)


def _is_ready(task: Task, done: Collection[str]) -> bool:
    return all(needed in done for needed in task.depends_on)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
