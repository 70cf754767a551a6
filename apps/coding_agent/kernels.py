"""The kernels that outlive a call: each belongs to a conversation and ends with it, when nobody has
used it for long, or with the runtime.

One script at a time runs in a kernel, in the order in which they came. A kernel is used again only
by what would have started the same: same conversation, agent, directory, interpreter, confinement,
rights and helpers.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import anyio

from coding_agent.background import Background
from lemon_agent import ToolError
from lemon_core.clock import Clock
from lemon_core.config.tools import ExecuteCode

if TYPE_CHECKING:
    from coding_agent.kernel import Cell, CellEnd, Kernel, KernelLaunch

FallbackReason = Literal["capacity_exhausted", "startup_failed"]


class NoKernel(Exception):
    """There is no kernel; no script was started. `reason` tells why."""

    def __init__(self, reason: FallbackReason, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason: FallbackReason = reason


@dataclass(frozen=True, slots=True)
class KernelKey:
    """What may share a kernel. The launch holds the kernel's program, and so its version.

    `rights` are those of the run, in any form: what one script leaves behind can call helpers while
    the next one runs.
    """

    session_id: str
    agent_id: str
    python: str
    launch: KernelLaunch
    rights: bytes = b""

    @classmethod
    def of(
        cls,
        session_id: str,
        agent_id: str,
        python: str,
        launch: KernelLaunch,
        rights: bytes = b"",
    ) -> KernelKey:
        """The key, with the interpreter that `python` is now."""
        return cls(session_id, agent_id, os.path.realpath(python), launch, rights)


@dataclass(frozen=True, slots=True)
class KeptRun:
    """How a script ended in a kernel that is kept."""

    end: CellEnd
    was_reused: bool
    was_reset: bool


@dataclass(eq=False, slots=True)
class _Slot:
    """A kernel, or the place for one.

    `session_key` is its last user's; `line` counts those who use it or wait for it.
    """

    key: KernelKey
    session_key: str
    used_at_ms: int
    kernel: Kernel | None = None
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    line: int = 0
    idle: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    has_foreign: bool = False


class Kernels:
    """All kernels of a runtime; `running` is the block for whose time there can be any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[KernelKey, _Slot] = {}
        self._tasks = Background("no script can be run")

    def running(self) -> AbstractAsyncContextManager[None]:
        """Scripts may run for the block; at its end every kernel is ended, with its children."""
        return self._tasks.running()

    @property
    def kept_count(self) -> int:
        """How many kernels are kept."""
        return len(self._slots)

    def now_ms(self) -> int:
        """The time that scripts are measured with."""
        return self._clock.monotonic_ms()

    async def run_once(self, launch: KernelLaunch, cell: Cell) -> CellEnd:
        """Run a script in a kernel of its own; raises `ToolError` when there can be none."""
        try:
            kernel = await self._begun(launch)
        except NoKernel as exc:
            raise ToolError(str(exc)) from exc
        try:
            return await kernel.run(cell)
        finally:
            await kernel.stop()

    async def run_kept(
        self,
        key: KernelKey,
        cell: Cell,
        settings: ExecuteCode,
        *,
        session_key: str,
        reset: bool = False,
    ) -> KeptRun:
        """Run a script in the kernel of `key`, when it is its turn.

        Raises `NoKernel` when there can be none, and `ToolError` when too many wait already.
        """
        slot = await self._slot(key, session_key, settings)
        if slot.line > settings.max_queued_cells_per_kernel:
            raise ToolError(f"{slot.line - 1} scripts wait for this kernel already")
        slot.line += 1
        slot.idle.cancel()
        try:
            async with slot.turn:
                return await self._in_turn(slot, cell, reset)
        finally:
            slot.line -= 1
            slot.used_at_ms = self._clock.monotonic_ms()
            self._leave(slot, settings.kernel_idle_timeout_ms)

    async def end_session(self, session_key: str) -> None:
        """End what the conversations of a session have left: it was started over."""
        slots = [slot for slot in self._slots.values() if slot.session_key == session_key]
        await self._discard(slots)

    async def apply(self, settings: ExecuteCode) -> None:
        """Take over a changed configuration: without `session` kernels none is kept."""
        if not settings.enabled or settings.kernel_mode != "session":
            await self._discard(list(self._slots.values()))

    # -- one kernel --------------------------------------------------------------------------

    async def _in_turn(self, slot: _Slot, cell: Cell, reset: bool) -> KeptRun:
        was_reset = reset and slot.kernel is not None
        if slot.kernel is not None and (reset or slot.kernel.ended.is_set()):
            await self._end(slot)
        was_reused = slot.kernel is not None
        if slot.kernel is None:
            slot.kernel = await self._begun(slot.key.launch)
        # What an earlier script got from outside, a later one may print.
        cell.calls.has_foreign = slot.has_foreign
        try:
            end = await slot.kernel.run(cell)
        except BaseException:
            slot.kernel, slot.has_foreign = None, False  # it was ended
            raise
        slot.has_foreign = cell.calls.has_foreign
        if end.is_lost:
            await self._end(slot)
        return KeptRun(end, was_reused, was_reset)

    async def _begun(self, launch: KernelLaunch) -> Kernel:
        """A kernel that takes scripts; raises `NoKernel`, and `ToolError` outside of the block."""
        from coding_agent.kernel import Kernel  # scripts are off in most runtimes
        from coding_agent.kernel_wire import KernelGone

        self._tasks.require_open()
        kernel = Kernel(launch)
        self._tasks.start(kernel.serve)
        try:
            await kernel.begin()
        except KernelGone as exc:
            raise NoKernel("startup_failed", str(exc)) from exc
        return kernel

    async def _end(self, slot: _Slot) -> None:
        kernel, slot.kernel, slot.has_foreign = slot.kernel, None, False
        if kernel is not None:
            await kernel.stop()

    # -- all of them -------------------------------------------------------------------------

    async def _slot(self, key: KernelKey, session_key: str, settings: ExecuteCode) -> _Slot:
        found = self._slots.get(key)
        if found is not None:
            found.session_key = session_key
            return found
        if len(self._slots) >= settings.max_live_kernels:
            idle = [slot for slot in self._slots.values() if slot.line == 0]
            if not idle:
                raise NoKernel("capacity_exhausted")
            await self._discard([min(idle, key=lambda slot: slot.used_at_ms)])
        return self._slots.setdefault(key, _Slot(key, session_key, self._clock.monotonic_ms()))

    def _leave(self, slot: _Slot, idle_ms: int) -> None:
        """The last one out: an empty place is given up, an idle kernel has its time."""
        if slot.line:
            return
        is_kept = self._slots.get(slot.key) is slot  # else it was discarded meanwhile
        if is_kept and slot.kernel is None:
            del self._slots[slot.key]
        elif self._tasks.is_open and slot.kernel is not None:
            slot.idle = anyio.CancelScope()
            self._tasks.start(self._expire, slot, slot.idle, idle_ms if is_kept else 0)

    async def _expire(self, slot: _Slot, idle: anyio.CancelScope, idle_ms: int) -> None:
        with idle:
            await self._clock.sleep(idle_ms)
            if not slot.line:  # else somebody came in the very moment in which the time was over
                await self._discard([slot])

    async def _discard(self, slots: list[_Slot]) -> None:
        """End these kernels; a script that runs in one ends with it, the next begins a new one."""
        for slot in slots:
            if self._slots.get(slot.key) is slot:
                del self._slots[slot.key]
        async with anyio.create_task_group() as tasks:
            for slot in slots:
                if slot.kernel is not None:
                    tasks.start_soon(slot.kernel.stop)
