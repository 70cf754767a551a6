"""Records of work that was given to others: stored facts, which outlive the run that asked.

A task moves forward only, and its end is written before anybody is told. `delivered_at_ms` is set
once: by whoever got the result to the parent's conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from lemon_core.store.rows import parse_row

if TYPE_CHECKING:
    from lemon_core.clock import Clock
    from lemon_core.store import Store

TABLE: Final = "agent_tasks"
TTL_MS: Final = 24 * 3_600_000
MAX_RESULT_CHARS: Final = 200_000

TaskStatus = Literal["queued", "running", "completed", "error", "timeout", "aborted", "lost"]
TaskKind = Literal["task", "agent"]

NEXT: Final[Mapping[TaskStatus, frozenset[TaskStatus]]] = {
    "queued": frozenset({"running", "error", "timeout", "aborted", "lost"}),
    "running": frozenset({"completed", "error", "timeout", "aborted", "lost"}),
    "completed": frozenset(),
    "error": frozenset(),
    "timeout": frozenset(),
    "aborted": frozenset(),
    "lost": frozenset(),
}


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task. `result` is the visible answer, `error` why there is none.

    `context` is the parent's, in its wire form: a result that comes after the parent's end is
    delivered under it. `wants_followup`: the parent did not wait for the result.
    """

    id: str
    kind: TaskKind
    run_id: str
    parent_run_id: str
    parent_session_key: str
    agent_id: str
    session_key: str
    description: str
    prompt: str = field(repr=False)
    created_at_ms: int
    status: TaskStatus = "queued"
    role: str | None = None
    queue_mode: str = "steer_backlog"
    wants_followup: bool = False
    parent_agent_id: str = "default"
    result: str | None = field(default=None, repr=False)
    error: str | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    delivered_at_ms: int | None = None
    usage: dict[str, Any] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return not NEXT[self.status]

    @property
    def awaits_delivery(self) -> bool:
        """Whether the parent has still to be told how it ended."""
        return self.has_ended and self.wants_followup and self.delivered_at_ms is None

    def facts(self) -> dict[str, object]:
        """What may be told to whoever watches: no prompt and no result."""
        times = {} if self.ended_at_ms is None else {"ended_at_ms": self.ended_at_ms}
        if self.started_at_ms is not None and self.ended_at_ms is not None:
            times["duration_ms"] = self.ended_at_ms - self.started_at_ms
        return {
            "task_id": self.id,
            "kind": self.kind,
            "run_id": self.run_id,
            "parent_run_id": self.parent_run_id,
            "session_key": self.session_key,
            "agent_id": self.agent_id,
            "description": self.description,
            "role": self.role,
            "queue_mode": self.queue_mode,
            "status": self.status,
            "error": self.error,
            "meta": self.meta,
            **times,
        }


class TaskStore:
    """Tasks by id, in the runtime's store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def add(self, record: TaskRecord) -> None:
        """Keep a new task."""
        await self._store.put(TABLE, record.id, _row(record))

    async def get(self, task_id: str) -> TaskRecord | None:
        """The task with this id."""
        stored = await self._store.load(TABLE, task_id)
        return None if stored is None else _record(task_id, stored)

    async def all(self) -> list[TaskRecord]:
        """Every task, the oldest first."""
        rows = await self._store.load_all(TABLE)
        found = [_record(str(key), row) for key, row in rows]
        return sorted(found, key=lambda record: (record.created_at_ms, record.id))

    async def move(
        self,
        task_id: str,
        status: TaskStatus,
        *,
        result: str | None = None,
        error: str | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> TaskRecord | None:
        """The task in its new state; as it is when it may not move there, None when it is gone."""
        now = self._clock.now_ms()

        def moved(record: TaskRecord) -> TaskRecord:
            if status not in NEXT[record.status]:
                return record
            if status == "running":
                return replace(record, status=status, started_at_ms=now)
            return replace(
                record,
                status=status,
                result=None if result is None else result[:MAX_RESULT_CHARS],
                error=error,
                usage=None if usage is None else dict(usage),
                ended_at_ms=now,
            )

        return (await self._change(task_id, moved))[1]

    async def claim(self, task_id: str) -> bool:
        """Whether the result is the caller's to have delivered: true once, for one caller."""
        now = self._clock.now_ms()

        def claimed(record: TaskRecord) -> TaskRecord:
            if not record.has_ended or record.delivered_at_ms is not None:
                return record
            return replace(record, delivered_at_ms=now)

        return (await self._change(task_id, claimed))[0]

    async def mark_lost(self) -> None:
        """End what a runtime before this one has left behind."""
        for record in await self.all():
            if not record.has_ended:
                await self.move(record.id, "lost", error="lost_on_restart")

    async def sweep(self) -> None:
        """Forget what ended a day ago, delivered or not."""
        now = self._clock.now_ms()
        for record in await self.all():
            if record.ended_at_ms is not None and now - record.ended_at_ms > TTL_MS:
                await self._store.delete(TABLE, record.id)

    async def _change(
        self, task_id: str, update: Callable[[TaskRecord], TaskRecord]
    ) -> tuple[bool, TaskRecord | None]:
        while True:
            stored = await self._store.load(TABLE, task_id)
            if stored is None:
                return False, None
            record = _record(task_id, stored)
            changed = update(record)
            if changed is record:
                return False, record
            if await self._store.compare_and_swap(TABLE, task_id, stored, _row(changed)):
                return True, changed


def _record(task_id: str, stored: object) -> TaskRecord:
    return parse_row(TaskRecord, stored, f"task {task_id}")


def _row(record: TaskRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
