"""The events of one run: numbered, kept and told, and made from what the executor says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lemon_core import events
from lemon_core.bus import Subscription, run_topic
from lemon_core.events import Completion, Delta, ErrorValue, Event
from lemon_core.journal_run import size_of
from lemon_core.resume import ResumeToken
from lemon_gateway.json_values import clean, plain
from lemon_gateway.requests import (
    EngineAction,
    EngineCompleted,
    EngineDelta,
    EngineEvent,
    EngineStarted,
    ExecutionRequest,
    SinkMessage,
)
from lemon_gateway.run_parts import Ending, RunParts
from lemon_gateway.run_relay import relaying

EVENT_BYTES = 1_600
"""What an event takes in memory besides its own texts."""


class RunEvents:
    """Publishes the events of one run, and remembers of them what the end of the run needs.

    The journal numbers an event, the run's record keeps it, the bus tells it: nothing here waits.
    """

    def __init__(self, request: ExecutionRequest, parts: RunParts) -> None:
        self.texts: list[str] = []
        self.resume: ResumeToken | None = None
        self.facts: dict[str, object] = {}
        """Meta that the executor gave with its start and end, such as the model it chose."""
        self._request, self._parts = request, parts
        self._run_id = request.run_id
        self._topic = run_topic(request.run_id)
        self._others: Subscription | None = None
        self._began_ms = parts.clock.monotonic_ms()
        self._meta: dict[str, object] = {
            "run_id": request.run_id,
            "session_key": request.session_key,
            "node_id": parts.settings.node_id,
        }
        for name in ("origin", "model"):
            if value := request.meta_text(name):
                self._meta[name] = value
        # One map for all deltas: nobody may write to the meta of a published event.
        self._delta_meta: dict[str, object] = {"session_key": request.session_key}

    def elapsed_ms(self) -> int:
        """How long ago this run was given its slot."""
        return self._parts.clock.monotonic_ms() - self._began_ms

    def publish(
        self,
        event_type: str,
        payload: object,
        *,
        ts_ms: int | None = None,
        size_bytes: int = EVENT_BYTES,
        **meta: object,
    ) -> None:
        """Give `payload` the next `event_seq` and hand it to everybody.

        `size_bytes` is about what holding the event costs.
        """
        parts = self._parts
        now_ms = parts.clock.now_ms() if ts_ms is None else ts_ms
        event = Event(event_type, now_ms, payload, {**self._meta, **meta} if meta else self._meta)
        numbered = parts.journal.append(self._run_id, event)
        parts.records.append_event(self._run_id, numbered, size_bytes=size_bytes)
        parts.bus.publish_from(self._others, self._topic, numbered)

    @contextmanager
    def with_others(self) -> Iterator[None]:
        """Take the run's approvals, and what its tasks and checkpoints do, into its stream."""
        with relaying(self._parts.bus, self._run_id, self._relay) as self._others:
            try:
                yield
            finally:
                self._others = None

    def _relay(self, event: Event) -> None:
        """Number and keep what is on the bus already; nothing stands before the first event of the
        run, and nothing after its end."""
        parts, run_id = self._parts, self._run_id
        if parts.journal.last_seq(run_id) and parts.journal.is_live(run_id):
            meta = {**self._meta, **event.meta}
            numbered = parts.journal.append(
                run_id, Event(event.type, event.ts_ms, event.payload, meta)
            )
            size_bytes = EVENT_BYTES + size_of(event.payload)
            parts.records.append_event(run_id, numbered, size_bytes=size_bytes)

    def take(self, message: SinkMessage) -> Ending | None:
        """Publish what the executor said; the run's ending when it is one."""
        match message:
            case EngineDelta():
                self._take_delta(message)
            case EngineStarted():
                self._take_started(message)
            case EngineAction():
                self._take_action(message)
            case EngineCompleted():
                return self._take_completed(message)
            case EngineEvent():
                payload = plain(dict(message.payload))
                self.publish("engine_event", payload, size_bytes=EVENT_BYTES + size_of(payload))
        return None

    def _take_delta(self, message: EngineDelta) -> None:
        text = clean(message.text)
        if not text:
            return
        self.texts.append(text)
        if len(self.texts) == 1:
            latency = {"latency_ms": self.elapsed_ms()}
            self._parts.telemetry.emit("lemon.run.first_token", latency, {"run_id": self._run_id})
        now_ms = self._parts.clock.now_ms()
        payload = Delta(
            run_id=self._run_id,
            seq=len(self.texts),
            text=text,
            ts_ms=now_ms,
            meta=self._delta_meta,
        )
        self.publish("delta", payload, ts_ms=now_ms, size_bytes=EVENT_BYTES + len(text))

    def _take_started(self, message: EngineStarted) -> None:
        self.resume = message.resume or self.resume
        meta = plain(message.meta)
        self.facts.update(meta or {})
        payload = events.EngineStarted(
            engine=message.engine,
            resume=message.resume,
            title=message.title,
            meta=meta,
            run_id=self._run_id,
            session_key=self._request.session_key,
        )
        self.publish("engine_started", payload)

    def _take_action(self, message: EngineAction) -> None:
        action = message.action
        detail = plain(action.detail)
        if detail is not action.detail:
            action = action.model_copy(update={"detail": detail})
        payload = events.EngineAction(
            action=action,
            engine=message.engine,
            phase=message.phase,
            ok=message.ok,
            message=message.message,
            level=message.level,
        )
        self.publish("engine_action", payload, size_bytes=EVENT_BYTES + size_of(action.detail))

    def _take_completed(self, message: EngineCompleted) -> Ending:
        answer = None if message.answer is None else clean(message.answer)
        usage, meta, error = plain(message.usage), plain(message.meta), plain_error(message.error)
        self.facts.update(meta or {})
        payload = Completion(
            ok=message.ok,
            answer=answer,
            error=error,
            engine=message.engine,
            resume=message.resume,
            usage=usage,
            run_id=self._run_id,
            session_key=self._request.session_key,
            meta=meta,
        )
        self.publish("engine_completed", payload, size_bytes=EVENT_BYTES + len(answer or ""))
        return Ending(message.ok, error, answer, message.resume, usage, meta)


def plain_error(error: object) -> ErrorValue:
    """An executor's error in the form that completions have."""
    if error is None:
        return None
    return plain(dict(error)) if isinstance(error, Mapping) else clean(str(error))
