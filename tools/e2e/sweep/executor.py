"""The executor of the sweep: it follows the words of a message and keeps a durable log.

A message is a line `<label> <verb>`; a merged one has several. `hold` keeps the run going until it
is told `finish`, `tool` makes it use a tool. The log survives the process: one line for each
execution that begins or ends, and for each text that a run took while it was going on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.lowlevel

from lemon_core.resume import ResumeToken
from lemon_core.runtime import Runtime
from lemon_gateway.executor import RunHandle, RunOptions, Sink, SteerResult
from lemon_gateway.requests import (
    Action,
    EngineAction,
    EngineCompleted,
    EngineDelta,
    EngineStarted,
    ExecutionRequest,
)

LOG_FILE: Final = "SWEEP_LOG_FILE"
HOLDS: Final = "SWEEP_HOLDS"
FINISH: Final = "finish"

What = Literal["begin", "end", "took"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log; `labels` are the messages whose text was read."""

    pid: int
    what: What
    run_id: str
    session_key: str
    labels: tuple[str, ...] = ()


class Log:
    """What was executed, by any process of the home."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, what: What, request: ExecutionRequest, labels: tuple[str, ...] = ()) -> None:
        """Add a line; it is there when this returns, whatever becomes of the process."""
        line = json.dumps([os.getpid(), what, request.run_id, request.session_key, labels])
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def read(self) -> list[Entry]:
        """Everything, in order."""
        if not self._path.exists():
            return []
        rows = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        return [Entry(pid, what, run, key, tuple(labels)) for pid, what, run, key, labels in rows]


@dataclass(slots=True)
class Live:
    """A run that is going on."""

    request: ExecutionRequest
    sink: Sink
    finish: anyio.Event = field(default_factory=anyio.Event)


def verbs(text: str) -> Mapping[str, str]:
    """The verbs of the messages in `text`, by label."""
    lines = [line.split() for line in text.splitlines()]
    return {words[0]: words[1] for words in lines if len(words) == 2}


class SweepExecutor:
    """See `lemon_gateway.executor.Executor`."""

    def __init__(self, runtime: Runtime) -> None:
        self._log = Log(Path(runtime.environ[LOG_FILE]))
        self._holds = runtime.environ[HOLDS] == "1"

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        """Begins to execute."""
        self._log.write("begin", request, tuple(verbs(request.prompt)))
        live = Live(request, sink)
        return RunHandle(request.run_id, live, self._live(live))

    async def _live(self, live: Live) -> None:
        request, ref, said = live.request, live.request.run_id, verbs(live.request.prompt)
        token = ResumeToken(engine="lemon", value=f"of {request.session_key}")
        try:
            await live.sink.send(EngineStarted(ref, token))
            await live.sink.send(EngineDelta(ref, "begun, "))
            if "tool" in said.values():
                action = Action(id="tool_1", kind="command", title="true")
                await live.sink.send(EngineAction(ref, action, "started"))
                await anyio.lowlevel.checkpoint()
                await live.sink.send(EngineAction(ref, action, "completed", ok=True))
            if self._holds and "hold" in said.values():
                await live.finish.wait()
            await live.sink.send(EngineDelta(ref, "done"))
        finally:
            self._log.write("end", request)
        await live.sink.send(EngineCompleted(ref, True, resume=token))

    async def cancel(self, control: object) -> None:
        """The gateway stops to wait for the run's work, which ends it."""

    async def steer(self, control: object, text: str) -> SteerResult:
        """Takes every text but those that ask not to be taken."""
        assert isinstance(control, Live)
        if text == FINISH:
            control.finish.set()
            return "ok"
        said = verbs(text)
        if "later" in said.values():
            return "unsupported"
        self._log.write("took", control.request, tuple(said))
        return "ok"

    async def redirect(self, control: object, text: str) -> SteerResult:
        """As `steer`."""
        return await self.steer(control, text)
