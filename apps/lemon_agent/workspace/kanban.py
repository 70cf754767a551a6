"""Boards of tasks that agents take, one worker for each task at a time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lemon_agent.workspace.kanban_records import (
    DEFAULT_COLUMNS,
    FAILURE,
    Board,
    BoardStatus,
    Task,
    leased,
    next_task,
    renewed,
    without_lease,
)
from lemon_agent.workspace.records import (
    InvalidInput,
    NotFound,
    as_row,
    change,
    records,
    short_hash,
)
from lemon_core.store.errors import StoreCorrupt
from lemon_core.store.rows import parse_row

if TYPE_CHECKING:
    from lemon_core.clock import Clock
    from lemon_core.introspection import Introspection
    from lemon_core.runtime import Runtime
    from lemon_core.store import Store

BOARDS: Final = "kanban_boards"
TASKS: Final = "kanban_tasks"
DEFAULT_LEASE_MS: Final = 300_000
MAX_FAILURE_CHARS: Final = 120
_TASK_FIELDS: Final = frozenset(
    {
        "title",
        "description",
        "status",
        "priority",
        "assignee",
        "worker_profile",
        "session_key",
        "run_id",
        "depends_on",
        "meta",
    }
)


class KanbanStore:
    """Boards and tasks. Changes are recorded for introspection with ids and sizes only."""

    def __init__(self, store: Store, clock: Clock, introspection: Introspection) -> None:
        self._store, self._clock, self._introspection = store, clock, introspection

    @classmethod
    def of(cls, runtime: Runtime) -> KanbanStore:
        """The boards of a runtime, for `runtime.service`."""
        return cls(runtime.store, runtime.clock, runtime.introspection)

    # -- boards ------------------------------------------------------------------------------

    async def create_board(
        self,
        name: str,
        *,
        workspace: str | None = None,
        owner: str | None = None,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        meta: Mapping[str, Any] | None = None,
    ) -> Board:
        """A new board. Raises `InvalidInput` with `empty_name` or `invalid_attrs`."""
        if not name.strip():
            raise InvalidInput("empty_name", "a board needs a name")
        names = tuple(dict.fromkeys(column.strip() for column in columns))
        if not names or not all(names):
            raise InvalidInput("invalid_attrs", "a board needs columns, each with a name")
        now = self._clock.now_ms()
        board = Board(
            id=f"board_{os.urandom(8).hex()}",
            name=name.strip(),
            created_at_ms=now,
            updated_at_ms=now,
            workspace=workspace,
            owner=owner,
            columns=names,
            meta=dict(meta or {}),
        )
        await self._store.put(BOARDS, board.id, as_row(board))
        self._tell("kanban_board_created", board_id=board.id, name_bytes=len(board.name.encode()))
        return board

    async def get_board(self, board_id: str) -> Board:
        """Raises `NotFound` with the code `board_not_found`."""
        stored = await self._store.load(BOARDS, board_id)
        if stored is None:
            raise BoardNotFound(f"there is no board {board_id}")
        return parse_row(Board, stored, f"board {board_id}")

    async def list_boards(
        self, *, status: BoardStatus | None = None, limit: int = 50
    ) -> list[Board]:
        """The last changed first."""
        found = await records(self._store, BOARDS, Board)
        found = [board for board in found if status in (None, board.status)]
        found.sort(key=lambda board: (board.updated_at_ms, board.id), reverse=True)
        return found[: max(limit, 0)]

    async def archive_board(self, board_id: str) -> Board:
        """Put the board away; its tasks stay."""
        await self.get_board(board_id)
        now = self._clock.now_ms()
        board = await change(
            self._store,
            BOARDS,
            board_id,
            Board,
            lambda b: replace(b, status="archived", archived_at_ms=now, updated_at_ms=now),
            f"there is no board {board_id}",
        )
        self._tell("kanban_board_archived", board_id=board_id)
        return board

    async def clear_board(self, board_id: str) -> int:
        """Remove the board's tasks; how many there were."""
        await self.get_board(board_id)
        tasks = await self._tasks(board_id)
        for task in tasks:
            await self._store.delete(TASKS, task.id)
        self._tell("kanban_board_cleared", board_id=board_id, tasks=len(tasks))
        return len(tasks)

    # -- tasks -------------------------------------------------------------------------------

    async def create_task(self, board_id: str, title: str, **attrs: Any) -> Task:
        """A task in the first column unless `status` says another.

        Raises `NotFound` for the board, `InvalidInput` with `empty_title`, `invalid_status` or
        `invalid_attrs`.
        """
        board = await self.get_board(board_id)
        if not title.strip():
            raise InvalidInput("empty_title", "a task needs a title")
        now = self._clock.now_ms()
        blank = Task(
            id=f"task_{os.urandom(8).hex()}",
            board_id=board_id,
            title=title.strip(),
            status=board.columns[0],
            created_at_ms=now,
            updated_at_ms=now,
        )
        task = _with(blank, board, attrs)
        await self._store.put(TASKS, task.id, as_row(task))
        self._tell_task("created", task)
        return task

    async def get_task(self, task_id: str) -> Task:
        """Raises `NotFound`."""
        stored = await self._store.load(TASKS, task_id)
        if stored is None:
            raise NotFound(f"there is no task {task_id}")
        return parse_row(Task, stored, f"task {task_id}")

    async def list_tasks(
        self, board_id: str, *, status: str | None = None, limit: int = 100
    ) -> list[Task]:
        """A board's tasks, oldest first."""
        found = [task for task in await self._tasks(board_id) if status in (None, task.status)]
        return found[: max(limit, 0)]

    async def update_task(self, task_id: str, **attrs: Any) -> Task:
        """Change fields of a task; raises as `create_task`."""
        board = await self.get_board((await self.get_task(task_id)).board_id)
        task = await self._change(task_id, lambda found: _with(found, board, attrs))
        self._tell_task("updated", task)
        return task

    async def comment(self, task_id: str, author: str, body: str) -> Task:
        """Add a comment. Raises `InvalidInput` with `empty_comment`."""
        if not body.strip():
            raise InvalidInput("empty_comment", "a comment needs a text")
        comment = {
            "id": f"comment_{os.urandom(8).hex()}",
            "author": author,
            "body": body.strip(),
            "createdAtMs": self._clock.now_ms(),
        }
        task = await self._change(
            task_id, lambda found: replace(found, comments=(*found.comments, comment))
        )
        self._tell_task("commented", task, body_bytes=len(body.encode()))
        return task

    # -- leases ------------------------------------------------------------------------------

    async def lease_task(
        self,
        board_id: str,
        worker_id: str,
        *,
        from_status: str | None = None,
        lease_ms: int = DEFAULT_LEASE_MS,
    ) -> Task:
        """The oldest task that is free and ready, now this worker's; one worker for each task.

        Raises `NotFound` with `board_not_found` or `no_available_task`.
        """
        board = await self.get_board(board_id)
        while True:
            rows = await self._rows(board_id)
            found = next_task([task for _, task in rows], board, from_status)
            if found is None:
                raise NoAvailableTask(f"board {board_id} has no task that is free and ready")
            taken = leased(
                found,
                board,
                worker_id,
                lease_id=f"lease_{os.urandom(8).hex()}",
                now_ms=self._clock.now_ms(),
                lease_ms=lease_ms,
            )
            stored = next(row for row, task in rows if task is found)
            if await self._store.compare_and_swap(TASKS, found.id, stored, as_row(taken)):
                self._tell_task("leased", taken, worker_id=worker_id)
                return taken

    async def renew_lease(
        self, task_id: str, worker_id: str, lease_ms: int = DEFAULT_LEASE_MS
    ) -> Task:
        """Hold the task for longer; raises `NotFound` when the worker holds it no more."""
        now = self._clock.now_ms()
        return await self._change_own(
            task_id, worker_id, lambda task: renewed(task, now_ms=now, lease_ms=lease_ms)
        )

    async def release_lease(self, task_id: str, worker_id: str) -> Task:
        """Give the task back to the first column, to be taken again."""
        board = await self.get_board((await self.get_task(task_id)).board_id)
        now = self._clock.now_ms()
        return await self._change_own(
            task_id, worker_id, lambda task: without_lease(task, board.columns[0], now)
        )

    async def complete_task(self, task_id: str) -> Task:
        """The task is done, and nobody's any more."""
        board = await self.get_board((await self.get_task(task_id)).board_id)
        now = self._clock.now_ms()
        task = await self._change(
            task_id,
            lambda found: replace(without_lease(found, board.done, now), completed_at_ms=now),
        )
        self._tell_task("completed", task)
        return task

    async def fail_task(self, task_id: str, reason: str, *, worker_id: str | None = None) -> Task:
        """The task went wrong: it is `blocked`, or in the first column where there is none."""
        board = await self.get_board((await self.get_task(task_id)).board_id)
        now = self._clock.now_ms()
        failure = {"reason": reason[:MAX_FAILURE_CHARS], "workerId": worker_id, "atMs": now}

        def fail(found: Task) -> Task:
            free = without_lease(found, board.failed, now)
            return replace(free, meta={**free.meta, FAILURE: failure})

        task = await self._change(task_id, fail)
        self._tell_task("failed", task, reason_bytes=len(reason.encode()))
        return task

    async def reclaim_expired_leases(self, board_id: str) -> list[Task]:
        """Give tasks back whose worker's time is over; those that were."""
        board = await self.get_board(board_id)
        now = self._clock.now_ms()
        reclaimed: list[Task] = []
        for stored, task in await self._rows(board_id):
            if not task.has_expired(now):
                continue
            free = without_lease(task, board.columns[0], now)
            # A worker that renewed or finished in between keeps what it has.
            if await self._store.compare_and_swap(TASKS, task.id, stored, as_row(free)):
                self._tell_task("reclaimed", free)
                reclaimed.append(free)
        return reclaimed

    async def diagnostics(self) -> dict[str, object]:
        """Counts and hashes: no names and no text."""
        boards = await self.list_boards(limit=1_000_000)
        tasks = await records(self._store, TASKS, Task)
        return {
            "boards": {
                "count": len(boards),
                "by_status": dict(Counter(board.status for board in boards)),
                "board_hashes": [short_hash(board.id) for board in boards[:50]],
            },
            "tasks": {
                "count": len(tasks),
                "leased": sum(task.lease is not None for task in tasks),
                "failed": sum(FAILURE in task.meta for task in tasks),
                "text_bytes": sum(len((t.title + t.description).encode()) for t in tasks),
            },
        }

    # -- inside ------------------------------------------------------------------------------

    async def _tasks(self, board_id: str) -> list[Task]:
        return [task for _, task in await self._rows(board_id)]

    async def _rows(self, board_id: str) -> list[tuple[object, Task]]:
        """The board's tasks, oldest first, each with the row that it was read from."""
        rows = [
            (row, parse_row(Task, row, f"task {key!r}"))
            for key, row in await self._store.load_all(TASKS)
        ]
        rows = [(row, task) for row, task in rows if task.board_id == board_id]
        return sorted(rows, key=lambda pair: (pair[1].created_at_ms, pair[1].id))

    async def _change(self, task_id: str, update: Callable[[Task], Task]) -> Task:
        now = self._clock.now_ms()
        return await change(
            self._store,
            TASKS,
            task_id,
            Task,
            lambda task: replace(update(task), updated_at_ms=now),
            f"there is no task {task_id}",
        )

    async def _change_own(
        self, task_id: str, worker_id: str, update: Callable[[Task], Task]
    ) -> Task:
        def checked(task: Task) -> Task:
            if not task.is_leased_by(worker_id):
                raise NotFound(f"{worker_id} does not hold task {task_id}")
            return update(task)

        return await self._change(task_id, checked)

    def _tell_task(self, what: str, task: Task, **facts: object) -> None:
        self._tell(
            f"kanban_task_{what}",
            task_id=task.id,
            board_id=task.board_id,
            status=task.status,
            title_bytes=len(task.title.encode()),
            description_bytes=len(task.description.encode()),
            **facts,
        )

    def _tell(self, event_type: str, **facts: object) -> None:
        self._introspection.record(event_type, facts)


class BoardNotFound(NotFound):
    """There is no such board."""

    code = "board_not_found"


class NoAvailableTask(NotFound):
    """Nothing on the board can be taken now."""

    code = "no_available_task"


def _with(task: Task, board: Board, attrs: Mapping[str, Any]) -> Task:
    """The task with these fields; refuses what it has not, and a status that is no column."""
    if unknown := sorted(set(attrs) - _TASK_FIELDS):
        raise InvalidInput("invalid_attrs", f"a task has no {', '.join(unknown)}")
    changes = dict(attrs)
    if "title" in changes and not str(changes["title"]).strip():
        raise InvalidInput("empty_title", "a task needs a title")
    if changes.get("status", task.status) not in board.columns:
        columns = ", ".join(board.columns)
        raise InvalidInput("invalid_status", f"{changes['status']!r} is none of {columns}")
    if "depends_on" in changes:
        changes["depends_on"] = tuple(changes["depends_on"])
    try:
        return parse_row(Task, as_row(replace(task, **changes)), "the task")
    except StoreCorrupt as exc:
        raise InvalidInput("invalid_attrs", str(exc)) from exc
