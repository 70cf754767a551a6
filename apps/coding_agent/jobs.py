"""Commands that go on in the background: they belong to a conversation and end with the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import anyio

from coding_agent.background import Background
from coding_agent.tools.output import Excerpt, SpillFile
from coding_agent.tools.process import run_process
from lemon_agent import ToolError
from lemon_core.logs import get_logger

log = get_logger(__name__)

MAX_RUNNING_PER_SESSION: Final = 8
MAX_RUNNING: Final = 64
MAX_FINISHED_PER_SESSION: Final = 16

State = Literal["running", "exited", "killed", "failed"]


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be run, exactly as the shell tool would run it in the foreground."""

    command: str
    argv: Sequence[str]
    cwd: Path
    environ: Mapping[str, str]
    spill_dir: Path
    pty: bool = False


@dataclass(eq=False, slots=True)
class Job:
    """A command in the background. What it prints is counted from its first byte on."""

    id: str
    session_id: str
    session_key: str
    command: str
    started_at_ms: int
    spill: SpillFile
    state: State = "running"
    exit_code: int | None = None
    problem: str | None = None
    fresh: Excerpt = field(default_factory=Excerpt)
    read_bytes: int = 0
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def take(self, chunk: bytes) -> None:
        """Add output."""
        self.fresh.take(chunk)
        await self.spill.write(chunk)

    def take_fresh(self) -> Excerpt:
        """What came since the last time."""
        fresh, self.fresh = self.fresh, Excerpt()
        self.read_bytes += fresh.size
        return fresh


class Jobs:
    """All jobs of a runtime; `running` is the block for whose time there can be any."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._jobs: dict[str, Job] = {}
        self._tasks = Background("no background job can be started")
        self._count = 0

    def running(self) -> AbstractAsyncContextManager[None]:
        """Jobs may run for the block; at its end all of them are ended, with their children."""
        return self._tasks.running()

    def start(self, session_id: str, session_key: str, launch: Launch) -> Job:
        """Begin a job; raises `ToolError` when there are too many."""
        self._tasks.require_open()
        self._require_room(session_id)
        self._count += 1
        job = Job(
            id=f"job_{self._count}",
            session_id=session_id,
            session_key=session_key,
            command=launch.command,
            started_at_ms=self._now_ms(),
            spill=SpillFile(launch.spill_dir, "txt"),
        )
        self._jobs[job.id] = job
        self._tasks.start(self._live, job, launch)
        return job

    def of(self, session_id: str) -> list[Job]:
        """The jobs of a session, the oldest first."""
        return [job for job in self._jobs.values() if job.session_id == session_id]

    def get(self, session_id: str, job_id: str) -> Job:
        """A job of this session; raises `ToolError`, also for one of another session."""
        job = self._jobs.get(job_id)
        if job is None or job.session_id != session_id:
            known = ", ".join(job.id for job in self.of(session_id)) or "none"
            raise ToolError(f"this conversation has no job {job_id!r} (it has: {known})")
        return job

    async def kill(self, job: Job) -> None:
        """End a job and everything that it started; returns when that is done."""
        job.scope.cancel()
        await job.ended.wait()

    async def end_session(self, session_key: str) -> None:
        """End and forget what the conversations of a session have left: it was started over."""
        jobs = [job for job in self._jobs.values() if job.session_key == session_key]
        for job in jobs:
            job.scope.cancel()
        for job in jobs:
            await job.ended.wait()
            self._jobs.pop(job.id, None)

    def age_ms(self, job: Job) -> int:
        """How long ago it began."""
        return self._now_ms() - job.started_at_ms

    async def _live(self, job: Job, launch: Launch) -> None:
        state: State = "killed"  # unless it comes to its end by itself
        try:
            with job.scope:
                ending = await run_process(
                    launch.argv,
                    cwd=launch.cwd,
                    environ=launch.environ,
                    timeout_ms=None,
                    stdout=job.take,
                    pty=launch.pty,
                )
                state, job.exit_code = "exited", ending.exit_code
        except OSError as exc:
            state, job.problem = "failed", str(exc)
        except Exception as exc:  # one job's fault must not end the others
            log.exception("job.crashed", job_id=job.id)
            state, job.problem = "failed", f"{type(exc).__name__}: {exc}"
        finally:
            job.state = state
            self._forget_oldest(job.session_id)
            job.ended.set()

    def _require_room(self, session_id: str) -> None:
        own = [job for job in self.of(session_id) if job.state == "running"]
        if len(own) >= MAX_RUNNING_PER_SESSION:
            listed = "\n".join(f"{job.id}: {job.command[:100]}" for job in own)
            raise ToolError(f"{len(own)} jobs run already; end one with jobs kill:\n{listed}")
        if sum(job.state == "running" for job in self._jobs.values()) >= MAX_RUNNING:
            raise ToolError(f"{MAX_RUNNING} jobs run on this machine already: try again later")

    def _forget_oldest(self, session_id: str) -> None:
        finished = [job for job in self.of(session_id) if job.state != "running"]
        _drop(self._jobs, finished[:-MAX_FINISHED_PER_SESSION])


def _drop(jobs: dict[str, Job], gone: Iterable[Job]) -> None:
    for job in gone:
        del jobs[job.id]
