from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import pytest

from lemon_agent.errors import AgentError
from lemon_agent.workspace.kanban import TASKS, KanbanStore
from lemon_agent.workspace.kanban_records import Board, Task
from lemon_agent.workspace.records import InvalidInput, NotFound
from lemon_core.introspection import Introspection
from lemon_core.store import Store, StoreSettings, open_store
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


@dataclass
class Desk:
    store: Store
    clock: FakeClock
    introspection: Introspection
    kanban: KanbanStore

    async def board(self, *titles: str, **attrs: object) -> Board:
        board = await self.kanban.create_board("b", **attrs)  # type: ignore[arg-type]
        for title in titles:
            await self.clock.advance(1)
            await self.kanban.create_task(board.id, title)
        return board

    async def task(self, board: Board, title: str) -> Task:
        tasks = await self.kanban.list_tasks(board.id)
        return next(task for task in tasks if task.title == title)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = FakeClock()
    async with open_store(StoreSettings("memory"), clock) as store:
        introspection = Introspection(store, clock, enabled=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(introspection.serve)
            yield Desk(store, clock, introspection, KanbanStore(store, clock, introspection))
            tasks.cancel_scope.cancel()


async def code_of(call: object) -> str:
    with pytest.raises(AgentError) as caught:
        await call  # type: ignore[misc]
    error = caught.value
    return error.reason if isinstance(error, InvalidInput) else error.code


async def test_boards_are_made_listed_archived_and_cleared(desk: Desk) -> None:
    board = await desk.board("one", "two", columns=["in", " out "], owner="me")
    assert (board.columns, board.status, board.owner) == (("in", "out"), "active", "me")
    await desk.clock.advance(1)
    other = await desk.board()
    assert other.columns == ("todo", "doing", "review", "done")
    assert [b.id for b in await desk.kanban.list_boards()] == [other.id, board.id]
    archived = await desk.kanban.archive_board(other.id)
    assert archived.archived_at_ms is not None
    assert [b.id for b in await desk.kanban.list_boards(status="active")] == [board.id]
    assert await desk.kanban.clear_board(board.id) == 2
    assert await desk.kanban.list_tasks(board.id) == []


@pytest.mark.behaviour("lemon_agent.24")
async def test_what_has_no_meaning_is_refused_with_its_code(desk: Desk) -> None:
    kanban, board = desk.kanban, await desk.board("one")
    task = await desk.task(board, "one")
    assert await code_of(kanban.create_board(" ")) == "empty_name"
    assert await code_of(kanban.create_board("b", columns=["a", ""])) == "invalid_attrs"
    assert await code_of(kanban.create_task(board.id, " ")) == "empty_title"
    assert await code_of(kanban.create_task("nowhere", "t")) == "board_not_found"
    assert await code_of(kanban.create_task(board.id, "t", status="x")) == "invalid_status"
    assert await code_of(kanban.update_task(task.id, colour="red")) == "invalid_attrs"
    assert await code_of(kanban.update_task(task.id, priority=7)) == "invalid_attrs"
    assert await code_of(kanban.update_task(task.id, title="")) == "empty_title"
    assert await code_of(kanban.comment(task.id, "me", " ")) == "empty_comment"
    assert await code_of(kanban.get_task("nowhere")) == "not_found"
    assert await code_of(kanban.archive_board("nowhere")) == "board_not_found"
    await kanban.lease_task(board.id, "w")
    assert await code_of(kanban.lease_task(board.id, "w")) == "no_available_task"
    assert await desk.task(board, "one") != task


@pytest.mark.behaviour("lemon_agent.24")
async def test_a_task_goes_through_its_states(desk: Desk) -> None:
    board = await desk.board("first", "second")
    kanban = desk.kanban
    second = await desk.task(board, "second")
    first = await kanban.lease_task(board.id, "w1", lease_ms=100)
    assert (first.title, first.status) == ("first", "doing")
    assert first.lease is not None
    assert (first.lease["workerId"], first.lease["attempt"]) == ("w1", 1)
    assert first.lease["expiresAtMs"] == first.lease["leasedAtMs"] + 100
    await kanban.comment(first.id, "w1", "on it")
    failed = await kanban.fail_task(first.id, "x" * 500, worker_id="w1")
    assert (failed.status, failed.lease) == ("todo", None)
    assert len(failed.meta["lastFailure"]["reason"]) == 120
    again = await kanban.lease_task(board.id, "w2")
    assert again.lease is not None
    assert (again.id, again.lease["attempt"]) == (first.id, 2)
    done = await kanban.complete_task(first.id)
    assert (done.status, done.lease) == ("done", None)
    assert done.completed_at_ms is not None
    assert [c["body"] for c in done.comments] == ["on it"]
    await kanban.update_task(second.id, assignee="lem", depends_on=[first.id])
    assert (await kanban.lease_task(board.id, "w1")).id == second.id


async def test_a_failed_task_is_blocked_where_there_is_such_a_column(desk: Desk) -> None:
    board = await desk.board("one", columns=["todo", "blocked", "finished"])
    task = await desk.kanban.lease_task(board.id, "w")
    assert task.status == "todo"
    assert (await desk.kanban.fail_task(task.id, "no")).status == "blocked"
    assert (await desk.kanban.complete_task(task.id)).status == "finished"


async def test_a_task_waits_for_what_it_depends_on(desk: Desk) -> None:
    board = await desk.board("base", "top")
    base, top = await desk.task(board, "base"), await desk.task(board, "top")
    await desk.kanban.update_task(top.id, depends_on=[base.id])
    assert (await desk.kanban.lease_task(board.id, "w")).id == base.id
    with pytest.raises(NotFound):
        await desk.kanban.lease_task(board.id, "w")
    await desk.kanban.complete_task(base.id)
    assert (await desk.kanban.lease_task(board.id, "w")).id == top.id


@pytest.mark.behaviour("lemon_agent.24")
async def test_twenty_workers_get_twenty_tasks(desk: Desk) -> None:
    board = await desk.board(*(f"t{n}" for n in range(20)))
    taken: list[str] = []

    async def work(worker: str) -> None:
        taken.append((await desk.kanban.lease_task(board.id, worker)).id)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(work, f"w{number}")
    assert len(set(taken)) == 20


@pytest.mark.behaviour("lemon_agent.24")
async def test_expired_leases_return_and_live_ones_stay(desk: Desk) -> None:
    board = await desk.board("a", "b")
    late = await desk.kanban.lease_task(board.id, "w1", lease_ms=50)
    kept = await desk.kanban.lease_task(board.id, "w2", lease_ms=50)
    await desk.clock.advance(40)
    await desk.kanban.renew_lease(kept.id, "w2", 50)
    await desk.clock.advance(10)
    assert [t.id for t in await desk.kanban.reclaim_expired_leases(board.id)] == [late.id]
    assert (await desk.kanban.get_task(kept.id)).is_leased_by("w2")
    with pytest.raises(NotFound, match="w1 does not hold"):
        await desk.kanban.renew_lease(late.id, "w1")
    with pytest.raises(NotFound):
        await desk.kanban.release_lease(kept.id, "w1")
    assert (await desk.kanban.release_lease(kept.id, "w2")).status == "todo"


async def test_what_a_newer_version_stored_does_not_stop_a_lease(desk: Desk) -> None:
    board = await desk.board("one")
    task = await desk.task(board, "one")
    stored = await desk.store.get(TASKS, task.id)
    assert isinstance(stored, dict)
    await desk.store.put(TASKS, task.id, {**stored, "colour": "red"})
    with anyio.fail_after(5):
        assert (await desk.kanban.lease_task(board.id, "w")).id == task.id


@pytest.mark.behaviour("lemon_agent.24")
async def test_records_and_diagnostics_hold_no_text(desk: Desk) -> None:
    board = await desk.kanban.create_board("Project Bob")
    task = await desk.kanban.create_task(board.id, "call Bob", description="about Bob")
    await desk.kanban.comment(task.id, "me", "Bob again")
    await desk.kanban.lease_task(board.id, "w")
    await desk.kanban.fail_task(task.id, "Bob is out")
    await desk.introspection.flush()
    found = await desk.introspection.query()
    assert {record.event_type for record in found} >= {
        "kanban_board_created", "kanban_task_created", "kanban_task_commented",
        "kanban_task_leased", "kanban_task_failed",
    }  # fmt: skip
    diagnostics = await desk.kanban.diagnostics()
    assert not [r for r in [*found, diagnostics] if "Bob" in str(r)]
    assert diagnostics["tasks"] == {"count": 1, "leased": 0, "failed": 1, "text_bytes": 17}
