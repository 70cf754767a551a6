"""One run from its slot to its end.

Two commits are awaited and nothing is written between them: the begin mark before the executor is
called, and summary with chat state before `run_completed` is published. Everything in between is
plain functions over messages that are taken from the sink in batches.

A run ends exactly once: whatever happens while it lives becomes an `Ending`, and the finalizer
turns that into the completion.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import get_args

import anyio
import anyio.lowlevel

from lemon_core.bridges import SteerMode, SteerOutcome
from lemon_core.events import RunStarted
from lemon_core.logs import get_logger
from lemon_core.phases import RunPhase, RunPhaseGraph
from lemon_core.resume import NATIVE_ENGINE
from lemon_core.store import StoreError
from lemon_gateway.config import working_directory
from lemon_gateway.engine_lock import lock_key
from lemon_gateway.errors import LockTimeout, WorkspaceEscape, error_value, exception_text
from lemon_gateway.executor import (
    Executor,
    ExecutorError,
    RunHandle,
    RunOptions,
    RunSink,
    SteerResult,
)
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.run_end import Finalizer
from lemon_gateway.run_events import RunEvents
from lemon_gateway.run_parts import Ending, OnComplete, RunParts, failure

DONE_GRACE_MS = 1_000
CANCEL_TIMEOUT_S = 2.0

log = get_logger("lemon_gateway.run")


class Run:
    """A run that has been registered; `execute` lives it, or `abandon` ends it unlived.

    `steers` holds the outcomes by submission and outlives the run.
    """

    def __init__(
        self,
        request: ExecutionRequest,
        digest: bytes,
        parts: RunParts,
        *,
        slot_id: int | None = None,
        steers: dict[str, SteerOutcome] | None = None,
        on_complete: OnComplete | None = None,
        unregister: Callable[[], None] | None = None,
    ) -> None:
        self.request = request
        self.phase = RunPhase.DISPATCHED_TO_GATEWAY
        self._digest = digest
        self._parts = parts
        self._steers = {} if steers is None else steers
        self._steering: dict[str, anyio.Event] = {}
        self._events = RunEvents(request, parts)
        self._finalizer = Finalizer(
            request,
            parts,
            self._events,
            slot_id=slot_id,
            on_complete=on_complete,
            unregister=unregister,
            steers=self._steers,
        )
        self._sink = RunSink()
        self._scope = anyio.CancelScope()
        self._cancel_reason: str | None = None
        self._executor: Executor | None = None
        self._handle: RunHandle | None = None
        self._finished = False

    # --- control ---

    def cancel(self, reason: str) -> None:
        """End the run as aborted; only the first wish counts, and none after its end."""
        if self._cancel_reason is None and not self._finished:
            self._cancel_reason = reason
            self._scope.cancel()

    async def steer(self, submission_run_id: str, text: str, mode: SteerMode) -> SteerOutcome:
        """Hand `text` to the executor, once per `submission_run_id`."""
        while (under_way := self._steering.get(submission_run_id)) is not None:
            await under_way.wait()
        known = self._steers.get(submission_run_id)
        if known is not None:
            return known
        done = self._steering[submission_run_id] = anyio.Event()
        try:
            reason = await self._apply_steer(text, mode)
            outcome = SteerOutcome(submission_run_id, mode, reason is None, reason)
            self._steers[submission_run_id] = outcome
        finally:
            del self._steering[submission_run_id]
            done.set()
        if outcome.accepted:
            self._parts.journal.note(self.request.run_id, applied_steer=submission_run_id)
        return outcome

    async def _apply_steer(self, text: str, mode: SteerMode) -> str | None:
        """None when the executor took the text, else why not."""
        executor, handle = self._executor, self._handle
        if self._finished or executor is None or handle is None:
            return "run_not_active"
        result: object = "unsupported"
        try:
            if mode == "redirect":
                result = await executor.redirect(handle.control, text)
            if result == "unsupported":
                result = await executor.steer(handle.control, text)
        except Exception:  # a control call never raises into the run
            log.exception("run.steer_failed", run_id=self.request.run_id, mode=mode)
            return "error"
        if result == "ok":
            return None
        return str(result) if result in get_args(SteerResult) else "error"

    # --- life ---

    async def execute(self) -> None:
        """Live to the end, which has been told to everybody when this returns."""
        with self._events.with_others():
            await self._execute()

    async def _execute(self) -> None:
        ending: Ending | None = None
        try:
            if self._cancel_reason is None:
                with self._scope:
                    ending = await self._live()
        except Exception as exc:  # whatever escapes ends this run, and only this one
            log.exception("run.crashed", run_id=self.request.run_id)
            error = error_value("run_crashed", exception_text(_innermost(exc)))
            ending = Ending(False, error, resume=self._events.resume, stop_executor=True)
        finally:
            # None: cancelled by a wish, or with its worker because the gateway goes down.
            wish = self._cancel_reason or "gateway_shutdown"
            await self.abandon(ending or self._aborted(wish))

    async def abandon(self, ending: Ending) -> None:
        """End the run as `ending` says, unless it has ended already."""
        if self._finished:
            return
        self._finished = True
        self._sink.close()
        with anyio.CancelScope(shield=True):
            if ending.stop_executor:
                await self._stop_executor()
            self._step_to_end(ending)
            await self._finalizer.finish(ending)

    async def _live(self) -> Ending:
        try:
            executor = self._executor = self._parts.executor.get()
            await self._take_lock()
            cwd = working_directory(self.request, self._parts.paths)
            self._step_to(RunPhase.STARTING_ENGINE)
            if not await self._begin():
                # A former process began it and may have done half of it.
                return Ending(False, "run_lost")
            # The commit finishes even when the run is cancelled meanwhile.
            await anyio.lowlevel.checkpoint_if_cancelled()
            self._publish_started()
            handle = self._handle = await self._start(executor, cwd)
        except ExecutorError as exc:
            return Ending(False, exc.value())
        except (LockTimeout, WorkspaceEscape) as exc:
            return failure(exc.code, str(exc))
        except StoreError as exc:
            return failure("store_unavailable", str(exc))
        self._finalizer.register_progress()
        self._parts.journal.note(self.request.run_id, state="running")
        self._step_to(RunPhase.STREAMING)
        return await self._follow(handle)

    async def _take_lock(self) -> None:
        settings = self._parts.settings
        if settings.require_engine_lock:
            self._parts.journal.note(self.request.run_id, state="waiting_lock")
            self._finalizer.lease = await self._parts.lock.acquire(
                lock_key(self.request), self.request.run_id, settings.engine_lock_timeout_ms
            )

    async def _begin(self) -> bool:
        request = self.request
        self._parts.journal.note(
            request.run_id, state="starting", started_at_ms=self._parts.clock.now_ms()
        )
        return await self._parts.records.begin(
            request.run_id, self._digest, session_key=request.session_key
        )

    def _publish_started(self) -> None:
        request, now_ms = self.request, self._parts.clock.now_ms()
        payload = RunStarted(
            run_id=request.run_id,
            session_key=request.session_key,
            model=request.meta_text("model"),
            provider=request.meta_text("provider"),
            thinking_level=request.meta_text("thinking_level"),
        )
        self._events.publish("run_started", payload, ts_ms=now_ms)
        metadata = {
            "run_id": request.run_id,
            "session_key": request.session_key,
            "engine": NATIVE_ENGINE,
            "origin": request.meta_text("origin"),
        }
        self._parts.telemetry.emit("lemon.run.start", {"ts_ms": now_ms}, metadata)

    async def _start(self, executor: Executor, cwd: str) -> RunHandle:
        options = RunOptions(self.request.run_id, cwd)
        try:
            # Foreign code may return anything: the annotation is a promise, not a fact.
            handle: object = await executor.start_run(self.request, options, self._sink)
        except ExecutorError:
            raise
        except Exception as exc:  # and it may raise anything
            log.exception("run.executor_start_failed", run_id=self.request.run_id)
            raise ExecutorError("executor_start_exception", exception_text(exc)) from exc
        if not isinstance(handle, RunHandle):
            kind = type(handle).__name__
            raise ExecutorError("invalid_executor_start_result", f"start_run returned {kind}")
        return handle

    async def _follow(self, handle: RunHandle) -> Ending:
        """Take messages until one of them is the end."""
        done = handle.done
        if done is None:
            ending = await self._read(handle.run_ref)
        elif isinstance(done, asyncio.Future):
            # No task waits on it: that would cost every run one, and its cancelling is not ours.
            done.add_done_callback(self._executor_is_done)
            try:
                ending = await self._read(handle.run_ref)
            finally:
                done.remove_done_callback(self._executor_is_done)
        else:
            ending = await self._read_beside(done, handle.run_ref)
        if ending is None and done is not None:
            ending = await self._read_last(handle.run_ref)
        silent = Ending(False, "executor_exited_without_completion", resume=self._events.resume)
        return ending or silent

    async def _read(self, run_ref: str) -> Ending | None:
        """Messages to the end of the run; None when the executor is done or the sink ended."""
        while batch := await self._sink.receive_batch():
            for message in batch:
                if getattr(message, "run_ref", None) != run_ref:
                    continue
                ending = self._events.take(message)
                if ending is not None:
                    return ending
        return None

    def _executor_is_done(self, _: object = None) -> None:
        self._sink.pause()

    async def _read_beside(self, done: Awaitable[object], run_ref: str) -> Ending | None:
        """Read while a task waits for `done`."""

        async def wait() -> None:
            try:
                await done
            except Exception:  # a crashed executor says as little as a silent one
                log.exception("run.executor_crashed", run_id=self.request.run_id)
            self._executor_is_done()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                ending = await self._read(run_ref)
                tasks.cancel_scope.cancel()
        finally:
            if inspect.iscoroutine(done):
                done.close()  # the waiting task may not even have begun
        return ending

    async def _read_last(self, run_ref: str) -> Ending | None:
        """Read for the moment that an executor has left when it is done."""

        async def end() -> None:
            await self._parts.clock.sleep(DONE_GRACE_MS)
            self._sink.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end)
            ending = await self._read(run_ref)
            tasks.cancel_scope.cancel()
        return ending

    # --- the end ---

    def _aborted(self, reason: str) -> Ending:
        resume = self._events.resume or self.request.resume
        return Ending(False, reason, resume=resume, aborted=True, stop_executor=True)

    async def _stop_executor(self) -> None:
        executor, handle = self._executor, self._handle
        if executor is None or handle is None:
            return
        try:
            with anyio.move_on_after(CANCEL_TIMEOUT_S):
                await executor.cancel(handle.control)
        except Exception:  # best effort: the run ends either way
            log.exception("run.executor_cancel_failed", run_id=self.request.run_id)

    def _step_to_end(self, ending: Ending) -> None:
        if ending.aborted:
            self._step_to(RunPhase.ABORTED)
            return
        if self.phase is not RunPhase.DISPATCHED_TO_GATEWAY:
            self._step_to(RunPhase.FINALIZING)
        self._step_to(RunPhase.COMPLETED if ending.ok else RunPhase.FAILED)

    def _step_to(self, phase: RunPhase) -> None:
        if not RunPhaseGraph.allowed(self.phase, phase):
            log.warning(
                "run.illegal_phase",
                run_id=self.request.run_id,
                current=self.phase.value,
                target=phase.value,
            )
        self.phase = phase
        self._parts.journal.note(self.request.run_id, phase=phase.value)


def _innermost(error: Exception) -> BaseException:
    """The one error inside the groups that task groups wrap around it."""
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner
