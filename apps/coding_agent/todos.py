"""The task list of each conversation: a small file of its own, so that it survives a restart."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import anyio.to_thread
import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from coding_agent.workspace import make_private_folder
from lemon_agent import ToolError
from lemon_core.private_files import open_new

Status = Literal["pending", "in_progress", "completed", "blocked"]
Priority = Literal["high", "medium", "low"]

MAX_TODOS: Final = 200
_RANK: Final = {"high": 0, "medium": 1, "low": 2}


class Todo(BaseModel):
    """One thing to do, after those in `dependencies`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=100)
    content: str = Field(min_length=1, max_length=2_000)
    status: Status = "pending"
    priority: Priority = "medium"
    dependencies: tuple[str, ...] = ()


_LIST: Final = TypeAdapter(tuple[Todo, ...])


def parse_todos(value: object) -> tuple[Todo, ...]:
    """The list that `value` spells; raises `ToolError` for the first thing that is wrong."""
    try:
        todos = _LIST.validate_python(value)
    except ValidationError as exc:
        problem = exc.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ToolError(f"todos.{place}: {problem['msg']}") from exc
    if len(todos) > MAX_TODOS:
        raise ToolError(f"{len(todos)} todos, {MAX_TODOS} is the most")
    ids = [todo.id for todo in todos]
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        raise ToolError(f"two todos have the id {twice!r}")
    for todo in todos:
        if unknown := set(todo.dependencies) - set(ids):
            raise ToolError(
                f"todo {todo.id!r} depends on {sorted(unknown)[0]!r}, which is not there"
            )
    return todos


def actionable(todos: Sequence[Todo]) -> tuple[Todo, ...]:
    """What can be done now: open, with all it depends on completed; the most urgent first."""
    completed = {todo.id for todo in todos if todo.status == "completed"}
    ready = [
        todo
        for todo in todos
        if todo.status in ("pending", "in_progress") and completed.issuperset(todo.dependencies)
    ]
    return tuple(sorted(ready, key=lambda todo: _RANK[todo.priority]))


def progress(todos: Sequence[Todo]) -> dict[str, int]:
    """How many there are of each status, and the share that is completed in percent."""
    counts = {
        status: sum(todo.status == status for todo in todos)
        for status in ("pending", "in_progress", "completed", "blocked")
    }
    done = 100 * counts["completed"] // len(todos) if todos else 0
    return {"total": len(todos), **counts, "percent": done}


class Todos:
    """The lists of all conversations, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def load(self, session_id: str) -> tuple[Todo, ...]:
        """The list of a session; empty when it has none. Raises `ToolError`."""
        return await anyio.to_thread.run_sync(self._read, session_id)

    async def save(self, session_id: str, todos: Sequence[Todo]) -> None:
        """Replace the list of a session. Raises `ToolError`."""
        await anyio.to_thread.run_sync(self._write, session_id, tuple(todos))

    def _path(self, session_id: str) -> Path:
        return self._folder / f"{session_id}.json"

    def _read(self, session_id: str) -> tuple[Todo, ...]:
        path = self._path(session_id)
        try:
            return _LIST.validate_json(path.read_bytes())
        except FileNotFoundError:
            return ()
        except (OSError, ValidationError) as exc:
            raise ToolError(f"{path} cannot be read: write the list anew") from exc

    def _write(self, session_id: str, todos: tuple[Todo, ...]) -> None:
        path = self._path(session_id)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            make_private_folder(self._folder)
            with open_new(beside) as file:
                file.write(orjson.dumps([todo.model_dump() for todo in todos]))
            os.replace(beside, path)
        except OSError as exc:
            beside.unlink(missing_ok=True)
            raise ToolError(f"{path} cannot be written ({exc.strerror})") from exc
