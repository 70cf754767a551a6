"""The load on a Lemon server: a thin client of RouterService, as fast as its contract allows.

It speaks the messages themselves: what `lemon_core.rpc` does for a client is the client's cost and
not the server's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import grpc.aio

from lemon.execution.v1 import execution_pb2 as pb
from lemon.router.v1 import router_pb2 as router_pb
from lemon.router.v1 import router_pb2_grpc
from lemon_core.ids import new_uuid, run_id
from tools.bench.processes import BenchError
from tools.bench.stats import Timing

_TERMINAL = frozenset({"run_completed", "run_failed", "run_absorbed"})


@dataclass(slots=True)
class _Watched:
    began: float
    first: float = 0.0
    ended: float = 0.0
    failure: str = ""
    over: anyio.Event = field(default_factory=anyio.Event)
    events: list[pb.RunEvent] | None = None

    def end(self, failure: str = "") -> None:
        self.ended, self.failure = time.perf_counter(), failure
        self.over.set()


class RouterLoad:
    """One channel and one stream for any number of runs; made by `router_load`."""

    def __init__(self, channel: grpc.aio.Channel, cwd: Path) -> None:
        self._stub = router_pb2_grpc.RouterServiceStub(channel)
        self._cwd = str(cwd)
        self._stream = self._stub.WatchRuns()
        # A grpc stream takes one write at a time.
        self._writing = anyio.Lock()
        self._runs: dict[str, _Watched] = {}

    async def run(self, prompt: str = "Say hello.") -> Timing:
        """A run in a conversation of its own, to its end; raises `BenchError` when it fails."""
        watched = await self._watch(prompt, keep=False)
        return Timing(watched.first - watched.began, watched.ended - watched.began)

    async def record(self, prompt: str = "Say hello.") -> list[pb.RunEvent]:
        """The events of one such run."""
        watched = await self._watch(prompt, keep=True)
        return watched.events or []

    async def _watch(self, prompt: str, *, keep: bool) -> _Watched:
        name = run_id()
        watched = self._runs[name] = _Watched(time.perf_counter(), events=[] if keep else None)
        request = router_pb.RunRequest(
            run_id=name,
            session_key=f"agent:default:main:sub:{new_uuid()}",
            prompt=prompt,
            cwd=self._cwd,
            contract_version=1,
        )
        try:
            answer = await self._stub.SubmitRun(request)
            if answer.status != router_pb.SUBMIT_STATUS_ACCEPTED:
                raise BenchError(f"the router refused a run: {answer.reason}")
            await self._say(pb.SubscribeControl(subscribe=pb.Subscribe(run_id=name)))
            await watched.over.wait()
        finally:
            del self._runs[name]
        if watched.failure:
            raise BenchError(f"a run failed: {watched.failure}")
        return watched

    async def _say(self, control: pb.SubscribeControl) -> None:
        async with self._writing:
            await self._stream.write(control)

    async def read(self) -> None:
        """Take frames until the stream ends; the task of `router_load`."""
        await self._say(pb.SubscribeControl(hello=pb.Hello(contract_version=1)))
        while isinstance(frame := await self._stream.read(), pb.RunEventFrame):
            now = time.perf_counter()
            for event in frame.events:
                self._take(event, now)
            if frame.HasField("not_found"):
                self._end(frame.not_found.run_id, "the router does not know it")
        for name in tuple(self._runs):
            self._end(name, "the stream ended")

    def _take(self, event: pb.RunEvent, now: float) -> None:
        watched = self._runs.get(event.run_id)
        if watched is None:
            return
        kind = event.WhichOneof("payload") or ""
        if watched.events is not None:
            watched.events.append(event)
        if kind == "delta" and not watched.first:
            watched.first = now
        elif kind in _TERMINAL:
            ended = event.run_completed.completed
            watched.end("" if ended.ok else f"{kind} {ended.error_json.decode()}")

    def _end(self, name: str, failure: str) -> None:
        if watched := self._runs.get(name):
            watched.end(failure)


@asynccontextmanager
async def router_load(socket: Path, cwd: Path) -> AsyncIterator[RouterLoad]:
    """A client of the router behind `socket` for the block; runs work in `cwd`."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        load = RouterLoad(channel, cwd)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.read)
            yield load
            tasks.cancel_scope.cancel()
