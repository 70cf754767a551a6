"""A kernel: one Python process that runs scripts, and keeps what they define until it ends.

It is ended as a command of `bash` is, with its whole group. After a script that was cut off nobody
knows what its state is worth, so the process is ended then too, and nothing is tried again.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from signal import SIGINT
from typing import Any, Final, Literal, Protocol

import anyio

from coding_agent import kernel_runner
from coding_agent.kernel_runner import VERSION
from coding_agent.kernel_wire import KernelGone, Wire
from coding_agent.tools.output import Head
from coding_agent.tools.process import run_process
from coding_agent.tools.process_group import signal_group
from lemon_core.logs import get_logger

log = get_logger(__name__)

START_S: Final = 10.0
INTERRUPT_S: Final = 1.0
END_S: Final = 5.0
LAST_OUTPUT_S: Final = 1.0
MAX_BETWEEN_BYTES: Final = 10_000
# Nothing of the working directory is imported before scripts are: it may hold a `json.py`.
_BOOT: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "exec(compile(sys.argv.pop(1), 'kernel_runner.py', 'exec'))"
)

Take = Callable[[bytes], Awaitable[None]]
Kind = Literal["error", "system_exit", "unsupported_input", "interrupted"]


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """How a kernel is started; `helpers` are the names for scripts, with those of arguments.

    Two that are equal may stand for each other: the command line says how it is confined.
    """

    argv: tuple[str, ...]
    cwd: Path
    helpers: tuple[tuple[str, tuple[str, ...]], ...]
    environ: Mapping[str, str] = field(compare=False)


class Calls(Protocol):
    """Whoever answers what a script asks of its helpers; its calls carry `token`.

    `has_foreign` tells that what the script prints may come from outside; it can be set as well.
    """

    has_foreign: bool

    @property
    def token(self) -> str: ...
    async def answer(self, frame: Mapping[str, Any]) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class Cell:
    """A script to run, and who takes its output and its calls."""

    script: str
    take: Take
    calls: Calls


@dataclass(frozen=True, slots=True)
class CellEnd:
    """How a script ended; `is_lost`: the kernel with it, without saying so."""

    exit_code: int | None
    kind: Kind | None = None
    is_lost: bool = False


def kernel_argv(python: str) -> tuple[str, ...]:
    """The command line of a kernel. Its program is part of it: a sandbox need not see our files."""
    return (python, "-u", "-c", _BOOT, _runner_text())


@cache
def _runner_text() -> str:
    return Path(kernel_runner.__file__).read_text(encoding="utf-8")


class Kernel:
    """`serve` is the life of the process; `begin`, `run` and `stop` are called while it goes on."""

    def __init__(self, launch: KernelLaunch) -> None:
        ours, self._theirs = socket.socketpair()
        self._launch = launch
        self._wire = Wire(ours)
        self._scope = anyio.CancelScope()
        self._group: int | None = None
        self._exit_code: int | None = None
        self._problem: str | None = None
        self._output = _CellOutput()
        self.ended = anyio.Event()

    async def serve(self) -> None:
        """Run the process until it ends or is stopped."""
        try:
            with self._scope:
                ending = await run_process(
                    self._launch.argv,
                    cwd=self._launch.cwd,
                    environ=self._launch.environ,
                    timeout_ms=None,
                    stdout=self._output.take,
                    stdin=self._theirs.fileno(),
                    on_start=self._started,
                )
                self._exit_code = ending.exit_code
        except OSError as exc:
            self._problem = str(exc)
        except Exception:  # one kernel's fault must not end the others
            log.exception("kernel.crashed")
        finally:
            self._theirs.close()
            self._wire.close()
            self.ended.set()

    def _started(self, group: int) -> None:
        self._group = group

    async def begin(self) -> None:
        """Wait until it takes scripts; raises `KernelGone`, and is stopped then."""
        try:
            with anyio.fail_after(START_S):
                helpers = {name: list(names) for name, names in self._launch.helpers}
                await self._wire.send({"v": VERSION, "op": "init", "helpers": helpers})
                frame = await self._wire.receive()
                if frame.get("type") != "ready":
                    raise KernelGone("the kernel did not begin with `ready`")
        except (KernelGone, TimeoutError) as exc:
            await self.stop()
            said = self._output.between.data.decode(errors="replace").strip()[-1_000:]
            why = self._problem or said or f"no answer within {START_S:g} s"
            raise KernelGone(f"{self._launch.argv[0]} cannot be used: {why}") from exc
        except BaseException:
            await self.stop()
            raise

    async def run(self, cell: Cell) -> CellEnd:
        """Run a script to its end. Whatever cuts it off ends the kernel before it goes on."""
        try:
            return await self._run(cell)
        except KernelGone:
            with anyio.move_on_after(INTERRUPT_S):  # by itself, with its own exit code
                await self.ended.wait()
            await self.stop()
            return CellEnd(self._exit_code, is_lost=True)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._interrupt()
                await self.stop()
            raise

    async def _run(self, cell: Cell) -> CellEnd:
        end = f"\x1elemon-python\t{secrets.token_hex(16)}"
        written = await self._output.begin(cell.take, end.encode())
        await self._wire.send(
            {
                "v": VERSION,
                "op": "eval",
                "script": cell.script,
                "token": cell.calls.token,
                "end": end,
            }
        )
        kind: Kind | None = None
        while True:
            frame = await self._wire.receive()
            match frame.get("type"):
                case "call":
                    await self._wire.send(await cell.calls.answer(frame))
                case "exception":
                    kind = frame.get("kind")
                case "done" if frame.get("token") != cell.calls.token:
                    # A script wrote an end of its own: whose is what comes next, nobody can tell.
                    raise KernelGone("the kernel told the end of another script")
                case "done":
                    break
                case _:
                    pass
        # All of it is in the pipe by now; a script that put something else there loses its rest.
        with anyio.move_on_after(LAST_OUTPUT_S):
            await written.wait()
        code = frame.get("exit_code")
        return CellEnd(code if isinstance(code, int) else None, kind)

    async def stop(self) -> None:
        """End the process and everything that it started; returns when that is done."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            self._scope.cancel()
            await self.ended.wait()

    async def _interrupt(self) -> None:
        """Let the script clean up after itself, for a moment."""
        if self._group is not None and not self.ended.is_set():
            signal_group(self._group, SIGINT)
            with anyio.move_on_after(INTERRUPT_S):
                await self.ended.wait()


class _CellOutput:
    """Takes a kernel's output and parts it at the marks that end scripts.

    What comes between two scripts, of threads and processes that were left, is the next one's.
    """

    def __init__(self) -> None:
        self.between = Head(MAX_BETWEEN_BYTES)
        self._take: Take | None = None
        self._mark = b""
        self._held = b""
        self._written = anyio.Event()

    async def begin(self, take: Take, mark: bytes) -> anyio.Event:
        """A script begins; the event tells that its output has come whole."""
        earlier, self.between = self.between, Head(MAX_BETWEEN_BYTES)
        self._take, self._mark, self._held = take, mark, b""
        self._written = anyio.Event()
        if earlier.data:
            await take(bytes(earlier.data))
        return self._written

    async def take(self, chunk: bytes) -> None:
        """Add output."""
        if self._take is None:
            await self.between.take(chunk)
            return
        data, self._held = self._held + chunk, b""
        before, mark, after = data.partition(self._mark)
        if mark:
            if before:
                await self._take(before)
            self._take = None
            self._written.set()
            await self.between.take(after)
            return
        start = data.rfind(self._mark[:1], -len(self._mark))
        if start >= 0 and self._mark.startswith(data[start:]):  # it may go on in the next chunk
            data, self._held = data[:start], data[start:]
        if data:
            await self._take(data)
