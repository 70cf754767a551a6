"""Tasks that outlive the call that starts them: they live for a block and end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

from lemon_agent import ToolError

Args = TypeVarTuple("Args")


class Background:
    """`what` says in an error what cannot be done outside of the block."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tasks may be started for the block; leaving it ends those that are left and waits."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            finally:
                self._tasks = None
                tasks.cancel_scope.cancel()

    @property
    def is_open(self) -> bool:
        """Whether tasks can be started."""
        return self._tasks is not None

    def require_open(self) -> TaskGroup:
        """Where tasks are started; raises `ToolError` outside of the block."""
        if self._tasks is None:
            raise ToolError(f"{self._what}: Lemon is shutting down")
        return self._tasks

    def start(self, function: Callable[[*Args], Coroutine[Any, Any, object]], *args: *Args) -> None:
        """Start a task, which contains its own faults; raises `ToolError` outside of the block."""
        self.require_open().start_soon(function, *args)
