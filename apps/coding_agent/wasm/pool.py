"""The worker processes: one call each at a time, kept for the next one, killed when late."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from coding_agent.wasm.manifests import WasmTool
from lemon_core.clock import Clock, within
from lemon_core.config.tools import Wasm
from lemon_core.logs import get_logger

log = get_logger(__name__)

MAX_IDLE: Final = 2
MAX_WORKERS: Final = 8
MAX_LINE_BYTES: Final = 16_777_216
END_WAIT_S: Final = 2.0

Answerer = Callable[[object], Awaitable[object]]


class WasmFailed(Exception):
    """A call without a result; `reason` is `fuel`, `memory`, `trap`, `abi`, `imports`, `module`,
    `timeout` or `worker`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WasmResult:
    """What a module said."""

    text: str
    is_error: bool


@dataclass(eq=False, slots=True)
class _Worker:
    process: Process
    lines: BufferedByteReceiveStream

    async def send(self, message: Mapping[str, object]) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps(message).encode() + b"\n")

    async def received(self) -> dict[str, Any]:
        line = await self.lines.receive_until(b"\n", MAX_LINE_BYTES)
        message: dict[str, Any] = json.loads(line)
        return message


class WorkerPool:
    """One per runtime. Workers start with the first call and end with `running`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._idle: list[_Worker] = []
        self._living: set[_Worker] = set()
        self._turn = anyio.Semaphore(MAX_WORKERS)

    @property
    def is_running(self) -> bool:
        """Whether there is a worker."""
        return bool(self._living)

    async def run(
        self, tool: WasmTool, args: Mapping[str, object], settings: Wasm, answer: Answerer
    ) -> WasmResult:
        """What the module says; `answer` gives what it asks the host for. Raises `WasmFailed`."""
        request = {
            "op": "run",
            "path": str(tool.path),
            "args": args,
            "fuel": settings.fuel,
            "memory_bytes": settings.memory_bytes,
        }

        async def call() -> WasmResult:
            async with self._worker() as worker:
                return await _talk(worker, request, answer)

        try:
            return await within(self._clock, settings.timeout_ms, call)
        except TimeoutError:
            message = f"the tool took longer than {settings.timeout_ms} ms"
            raise WasmFailed("timeout", message) from None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Leaving the block ends every worker."""
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                for worker in tuple(self._living):
                    await self._end(worker)

    # -- workers -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        """A worker for one call; one whose call was cut off or broke is ended."""
        async with self._turn:
            worker = self._idle.pop() if self._idle else await self._started()
            is_sound = False
            try:
                yield worker
                is_sound = True
            finally:
                if is_sound and len(self._idle) < MAX_IDLE and worker in self._living:
                    self._idle.append(worker)
                else:
                    with anyio.CancelScope(shield=True):
                        await self._end(worker)

    async def _started(self) -> _Worker:
        # Nothing of the environment: a module has no business with it.
        environ = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LC_ALL": "C.UTF-8"}
        process = await anyio.open_process(
            [sys.executable, "-m", "coding_agent.wasm.worker"],
            cwd=Path("/"),
            env=environ,
            stderr=None,
            start_new_session=True,
        )
        assert process.stdout is not None
        worker = _Worker(process, BufferedByteReceiveStream(process.stdout))
        self._living.add(worker)
        return worker

    async def _end(self, worker: _Worker) -> None:
        self._living.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        with suppress(ProcessLookupError):
            worker.process.kill()
        with anyio.move_on_after(END_WAIT_S):
            await worker.process.aclose()


async def _talk(worker: _Worker, request: Mapping[str, object], answer: Answerer) -> WasmResult:
    try:
        await worker.send(request)
        while True:
            message = await worker.received()
            match message["op"]:
                case "call":
                    value = await answer(message["request"])
                    await worker.send({"op": "answer", "value": value})
                case "done":
                    return WasmResult(message["text"], bool(message["is_error"]))
                case _:
                    raise WasmFailed(message["reason"], message["message"])
    except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as exc:
        raise WasmFailed("worker", "the process of the tool has ended") from exc
    except (anyio.ClosedResourceError, anyio.DelimiterNotFound, ValueError) as exc:
        raise WasmFailed("worker", f"the process of the tool broke: {exc}") from exc
