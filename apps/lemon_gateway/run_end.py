"""The end of a run: one commit, one terminal event, and everything it held given back.

The order matters. Summary and chat state are committed together before `run_completed` is
published: whoever is woken by it must already see both. Lock and slot are given back after it, and
each step is contained: a broken store, bus or listener keeps neither of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from lemon_core.bridges import SteerOutcome
from lemon_core.errors import is_context_overflow
from lemon_core.events import Completion, RunCompleted
from lemon_core.logs import get_logger
from lemon_core.phases import infer_outcome
from lemon_core.resume import NATIVE_ENGINE, ChatState
from lemon_core.store import DELETE, KEEP
from lemon_core.store.chat_state import ChatStateChange
from lemon_core.util import truncate_utf8
from lemon_gateway.engine_lock import LockLease
from lemon_gateway.errors import LOG_ERROR_MAX_BYTES, USER_ABORTS, error_code
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.run_events import EVENT_BYTES, RunEvents
from lemon_gateway.run_parts import Ending, OnComplete, RunParts

log = get_logger("lemon_gateway.run")

_NO_STEERS: Final[Mapping[str, SteerOutcome]] = MappingProxyType({})


class Finalizer:
    """Ends one run. `lease` and `slot_id` are what the run holds by then."""

    def __init__(
        self,
        request: ExecutionRequest,
        parts: RunParts,
        events: RunEvents,
        *,
        slot_id: int | None = None,
        on_complete: OnComplete | None = None,
        unregister: Callable[[], None] | None = None,
        steers: Mapping[str, SteerOutcome] = _NO_STEERS,
    ) -> None:
        self.lease: LockLease | None = None
        self._request, self._parts, self._events = request, parts, events
        self._slot_id = slot_id
        self._on_complete, self._unregister = on_complete, unregister
        self._steers = steers

    async def finish(self, ending: Ending) -> None:
        """Commit, tell and give back; the caller sees to it that this happens once."""
        duration_ms = self._events.elapsed_ms()
        completion, change = self._decide(ending)
        await self._commit(completion, change, duration_ms)
        self._attempt(self._emit_stop, completion, duration_ms)
        self._attempt(self._publish_end, completion, change, duration_ms)
        self._attempt(self._release_lock)
        self._attempt(self._release_slot)
        self._attempt(self._tell_listener, completion)
        self._attempt(self._drop_progress)
        self._attempt(self._leave_registry)
        self._log_end(completion, duration_ms)

    def register_progress(self) -> None:
        """Let the run's progress messages find it while it lives."""
        for message_id in self._progress_ids():
            self._parts.progress.put(self._request.session_key, message_id, self._request.run_id)

    def _decide(self, ending: Ending) -> tuple[Completion, ChatStateChange]:
        try:
            completion = self._completion(ending)
            return completion, chat_state_change(completion)
        except Exception:  # an ending that makes no sense must not become no ending
            log.exception("run.ending_invalid", run_id=self._request.run_id)
            return self._completion(Ending(False, "run_crashed")), KEEP

    def _completion(self, ending: Ending) -> Completion:
        return Completion(
            ok=ending.ok,
            answer=ending.answer or "".join(self._events.texts),
            error=ending.error,
            resume=ending.resume,
            usage=ending.usage,
            run_id=self._request.run_id,
            session_key=self._request.session_key,
            meta=ending.meta,
        )

    async def _commit(
        self, completion: Completion, change: ChatStateChange, duration_ms: int
    ) -> None:
        run_id = self._request.run_id
        try:
            summary = self._summary(completion, duration_ms)
            await self._parts.records.finalize(run_id, summary, change)
        except Exception:  # a run whose end cannot be stored still ends for everybody who watches
            log.exception("run.not_stored", run_id=run_id)

    def _summary(self, completion: Completion, duration_ms: int) -> dict[str, object]:
        request, context = self._request, self._request.execution_context
        facts = {**self._events.facts, **request.meta}
        return {
            "completed": completion,
            "session_key": request.session_key,
            "run_id": request.run_id,
            "agent_id": request.meta_text("agent_id") or context.lineage.agent_id,
            "origin": request.meta_text("origin") or context.provenance.origin,
            "prompt": request.prompt,
            "cwd": request.cwd or context.workspace.cwd,
            "model": facts.get("model"),
            "provider": facts.get("provider"),
            "duration_ms": duration_ms,
            "engine": NATIVE_ENGINE,
            "meta": request.meta,
            **self._taken(),
        }

    def _taken(self) -> dict[str, object]:
        """What was steered in: a router that comes back must not run that again."""
        taken = [key for key, steer in self._steers.items() if steer.accepted]
        return {"applied_steers": taken} if taken else {}

    def _emit_stop(self, completion: Completion, duration_ms: int) -> None:
        self._parts.telemetry.emit(
            "lemon.run.stop",
            {"duration_ms": duration_ms, "ok": completion.ok},
            {"run_id": self._request.run_id, "outcome": _outcome(completion)},
        )

    def _publish_end(
        self, completion: Completion, change: ChatStateChange, duration_ms: int
    ) -> None:
        payload = RunCompleted(completed=completion, duration_ms=duration_ms)
        self._events.publish(
            "run_completed",
            payload,
            size_bytes=EVENT_BYTES + len(completion.answer or ""),
            chat_state_change=_change_word(change),
        )

    def _release_lock(self) -> None:
        if self.lease is not None:
            self._parts.lock.release(self.lease)

    def _release_slot(self) -> None:
        if self._slot_id is not None:
            self._parts.release_slot(self._slot_id)

    def _tell_listener(self, completion: Completion) -> None:
        if self._on_complete is not None:
            self._on_complete(self._request, completion)

    def _drop_progress(self) -> None:
        for message_id in self._progress_ids():
            self._parts.progress.delete(self._request.session_key, message_id)

    def _leave_registry(self) -> None:
        if self._unregister is not None:
            self._unregister()

    def _progress_ids(self) -> list[str | int]:
        ids = [self._request.meta.get(name) for name in ("progress_msg_id", "status_msg_id")]
        return [key for key in ids if isinstance(key, str | int) and not isinstance(key, bool)]

    def _attempt(self, step: Callable[..., None], *args: object) -> None:
        try:
            step(*args)
        except Exception:  # one failing step must not stop the later ones
            run_id = self._request.run_id
            log.exception("run.end_step_failed", run_id=run_id, step=step.__name__)

    def _log_end(self, completion: Completion, duration_ms: int) -> None:
        code = truncate_utf8(error_code(completion.error), LOG_ERROR_MAX_BYTES)
        fields = {
            "run_id": self._request.run_id,
            "session_key": self._request.session_key,
            "ok": completion.ok,
            "duration_ms": duration_ms,
            "deltas": len(self._events.texts),
        }
        if completion.ok:
            log.info("run.ended", **fields)
        elif code in USER_ABORTS:
            log.warning("run.ended", error=code, **fields)
        else:
            log.error("run.ended", error=code, **fields)


def chat_state_change(completion: Completion) -> ChatStateChange:
    """What the end of a run does to the stored state of its session.

    A conversation that no longer fits must not be resumed, even when a token came along; a native
    token is stored; anything else leaves the state as it is.
    """
    if is_context_overflow(completion.error):
        return DELETE
    token = completion.resume
    if token is not None and token.may_resume_top_level():
        return ChatState(last_engine=token.engine, last_resume_token=token.value)
    return KEEP


def _outcome(completion: Completion) -> str:
    facts = {"ok": completion.ok, "error": completion.error, "answer": completion.answer}
    return infer_outcome(facts).value


def _change_word(change: ChatStateChange) -> str:
    if isinstance(change, ChatState):
        return "put"
    return "delete" if change is DELETE else "none"
