"""The measured programs as processes: started, watched through /proc, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc

READY_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MIB_IN_KIB = 1024


class BenchError(Exception):
    """The benchmark cannot go on; the message says why."""


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all threads, user and system."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    # The program's name comes second, in brackets, and may hold spaces: count from behind it.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mib(pid: int) -> float:
    """Resident memory of a process now, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / _MIB_IN_KIB
    raise BenchError(f"process {pid} has no resident memory: it has ended")


@dataclass(frozen=True, slots=True)
class Started:
    """A program that is ready for work."""

    pid: int
    line: str
    """The line of its output that said so."""
    ready_s: float
    """From its start to that line."""

    def cpu_seconds(self) -> float:
        """Its processor time so far."""
        return cpu_seconds(self.pid)

    def resident_mib(self) -> float:
        """Its memory now."""
        return resident_mib(self.pid)


@asynccontextmanager
async def running(
    command: Sequence[str | Path],
    *,
    ready: str = "",
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> AsyncIterator[Started]:
    """A program for the block, entered when a line of its output holds `ready`."""
    began = time.perf_counter()
    process = await anyio.open_process(
        [str(word) for word in command],
        env=module_environ() if environ is None else environ,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        lines = _Lines(process)
        with anyio.fail_after(READY_LIMIT_S):
            line = await lines.find(ready)
        started = Started(process.pid, line, time.perf_counter() - began)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lines.drain)
            yield started
            tasks.cancel_scope.cancel()
    finally:
        await _end(process)


def module_environ() -> dict[str, str]:
    """An environment in which `python -m` finds what this process can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


class _Lines:
    """The output of a process, line by line."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self._stream = process.stdout
        self._rest = b""

    async def find(self, text: str) -> str:
        """The first line with `text`; raises `BenchError` when the output ends without it."""
        seen: list[str] = []
        try:
            while True:
                *whole, self._rest = (self._rest + await self._stream.receive()).split(b"\n")
                for raw in whole:
                    seen.append(raw.decode(errors="replace"))
                    if text in seen[-1]:
                        return seen[-1]
        except anyio.EndOfStream:
            told = "\n".join(seen) or "(it said nothing)"
            raise BenchError(f"the program ended without {text!r}:\n{told}") from None

    async def drain(self) -> None:
        """Read on, so that the process never waits for a full pipe."""
        async for _ in self._stream:
            pass


async def _end(process: anyio.abc.Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(STOP_LIMIT_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
        await process.aclose()


@dataclass(frozen=True, slots=True)
class Ended:
    """A command from its start to its exit."""

    wall_s: float
    peak_mib: float


async def run_to_end(
    command: Sequence[str | Path], *, environ: Mapping[str, str], cwd: Path, scratch: Path
) -> Ended:
    """Run a command by the small starter; raises `BenchError` when it fails."""
    report = scratch / "spawn.json"
    starter = [sys.executable, "-I", "-S", str(Path(__file__).with_name("spawn.py")), str(report)]
    with anyio.fail_after(READY_LIMIT_S):
        done = await anyio.run_process(
            [*starter, *(str(word) for word in command)],
            env=environ,
            cwd=cwd,
            check=False,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        raise BenchError(f"{command[0]}: {done.stdout.decode(errors='replace')}")
    told = json.loads(await anyio.Path(report).read_text(encoding="utf-8"))
    if told["code"] != 0:
        output = done.stdout.decode(errors="replace")
        raise BenchError(f"{command[0]} ended with {told['code']}:\n{output}")
    return Ended(told["wall_s"], told["peak_kib"] / _MIB_IN_KIB)
