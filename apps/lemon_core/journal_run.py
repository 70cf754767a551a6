"""One run in the journal: the events still held, and the fold of those that are not.

`Fold` stands for the events 1 to `last_seq`; `events` holds the ones after it, without a gap.
Folding moves the oldest events into the fold, so that memory stays bounded and a late subscriber
still gets the whole run: first the fold as a snapshot, then the events. The terminal event is never
folded away.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import BaseModel

from lemon_core.bridges import ActionState, RunSnapshot, RunState
from lemon_core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Completion,
    Delta,
    EngineAction,
    EngineStarted,
    Event,
    PendingApproval,
    RunAbsorbed,
    RunCompleted,
    RunFailed,
    RunPhaseChanged,
    RunStarted,
)
from lemon_core.resume import ResumeToken

TERMINAL_TYPES = frozenset({"run_completed", "run_failed", "run_absorbed"})
"""Event types after which a run has no further events."""

# Measured: an event with its payload model and meta map takes about 1.6 kB besides its own text.
_EVENT_BYTES = 1_600
_RUN_BYTES = 2_000
_VALUE_BYTES = 64


def size_of(value: object) -> int:
    """About how many bytes `value` keeps alive; shared parts count each time."""
    kind = type(value)
    if kind is str or kind is bytes:
        return sys.getsizeof(value)
    if value is None or kind is int or kind is bool:
        return _VALUE_BYTES
    if isinstance(value, dict | Mapping):
        return _VALUE_BYTES + sum(size_of(key) + size_of(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return _VALUE_BYTES + sum(map(size_of, value))
    if isinstance(value, BaseModel):
        return _VALUE_BYTES + sum(map(size_of, value.__dict__.values()))
    return sys.getsizeof(value) if isinstance(value, str | bytes) else _VALUE_BYTES


def event_bytes(event: Event) -> int:
    """About how much memory holding `event` takes."""
    payload = event.payload
    if isinstance(payload, Delta):
        return _EVENT_BYTES + sys.getsizeof(payload.text)
    if isinstance(payload, RunPhaseChanged | RunStarted):
        return _EVENT_BYTES  # names and ids, which are counted already
    return _EVENT_BYTES + size_of(payload)


def _action_bytes(action: ActionState) -> int:
    return 4 * _VALUE_BYTES + len(action.title) + size_of(action.detail)


@dataclass(slots=True)
class Fold:
    """What the events 1 to `last_seq` of a run add up to."""

    last_seq: int = 0
    delta_seq: int = 0
    texts: list[str] = field(default_factory=list)
    resume: ResumeToken | None = None
    actions: dict[str, ActionState] = field(default_factory=dict)
    approvals: dict[str, PendingApproval] = field(default_factory=dict)
    bytes: int = 0

    def add(self, event: Event) -> None:
        """Take the next event of the run into account."""
        self.last_seq += 1
        match event.payload:
            case Delta() as delta:
                self.delta_seq = delta.seq
                self.texts.append(delta.text)
                self.bytes += len(delta.text)
                if len(self.texts) > 256:
                    self.texts = ["".join(self.texts)]
            case EngineAction() as progress:
                self._add_action(progress)
            case ApprovalRequested(pending=pending):
                self.approvals[pending.id] = pending
                self.bytes += size_of(pending)
            case ApprovalResolved(approval_id=approval_id):
                if (answered := self.approvals.pop(approval_id, None)) is not None:
                    self.bytes -= size_of(answered)
            case EngineStarted(resume=ResumeToken() as token):
                self.resume = token
            case Completion(resume=ResumeToken() as token):
                self.resume = token
            case RunCompleted(completed=Completion(resume=ResumeToken() as token)):
                self.resume = token
            case _:
                pass

    def _add_action(self, progress: EngineAction) -> None:
        action = progress.action
        known = self.actions.get(action.id)
        if known is not None:
            self.bytes -= _action_bytes(known)
        detail = action.detail
        if detail is None and known is not None:
            detail = None if known.detail is None else dict(known.detail)
        state = ActionState(
            action.id, action.kind, action.title, progress.phase, progress.ok, detail
        )
        self.actions[action.id] = state
        self.bytes += _action_bytes(state)

    def drop_details(self, excess: int) -> None:
        """Give up details of actions, oldest first, until `excess` bytes are free."""
        for action in tuple(self.actions.values()):
            if excess <= 0:
                return
            if action.detail is not None:
                lean = replace(action, detail=None)
                freed = _action_bytes(action) - _action_bytes(lean)
                self.actions[action.id] = lean
                self.bytes -= freed
                excess -= freed

    def copy(self) -> Fold:
        """A fold that can go on on its own."""
        return replace(
            self,
            texts=list(self.texts),
            actions=dict(self.actions),
            approvals=dict(self.approvals),
        )


class RunJournal:
    """The events of one run. Only `Journal` changes it."""

    __slots__ = (
        "bytes",
        "events",
        "fold",
        "last_seq",
        "phase",
        "run_id",
        "session_key",
        "sizes",
        "started_at_ms",
        "state",
        "steers",
        "terminal",
    )

    def __init__(self, run_id: str, session_key: str, state: RunState, phase: str) -> None:
        self.run_id, self.session_key = run_id, session_key
        self.state: RunState = state
        self.phase = phase
        self.started_at_ms: int | None = None
        self.steers: list[str] = []
        self.events: list[Event] = []
        self.sizes: list[int] = []
        self.fold = Fold()
        self.last_seq = 0
        self.terminal: Event | None = None
        self.bytes = _RUN_BYTES

    @property
    def first_seq(self) -> int:
        """The number of the oldest event still held (one past the last when none is)."""
        return self.fold.last_seq + 1

    @property
    def foldable(self) -> int:
        """How many events may still be folded: all but a terminal one."""
        return len(self.events) - (self.terminal is not None)

    def append(self, event: Event) -> None:
        """Hold `event`, whose number is the next one."""
        size = event_bytes(event)
        self.events.append(event)
        self.sizes.append(size)
        self.bytes += size
        self.last_seq += 1
        self._follow(event)

    def _follow(self, event: Event) -> None:
        """Keep state and phase up to date for owners that do not note them themselves."""
        kind = event.type
        if kind == "run_started":
            self.state = "starting"
            if self.started_at_ms is None:
                self.started_at_ms = event.ts_ms
        elif kind == "engine_started":
            self.state = "running"
        elif kind == "run_phase_changed":
            self.phase = str(getattr(event.payload, "phase", self.phase))
        elif kind in TERMINAL_TYPES:
            self.state = "terminal"
            self.terminal = event

    def after(self, seq: int, limit: int) -> list[Event]:
        """The held events numbered above `seq`, at most `limit`."""
        start = seq - self.fold.last_seq
        return self.events[start : start + limit]

    def fold_oldest(self, count: int) -> None:
        """Move up to `count` of the oldest events into the fold."""
        count = min(count, self.foldable)
        before = self.fold.bytes
        for event in self.events[:count]:
            self.fold.add(event)
        if self.terminal is not None:
            self.fold.texts = ["".join(self.fold.texts)]  # nothing is added any more
        self.bytes += self.fold.bytes - before - sum(self.sizes[:count])
        del self.events[:count], self.sizes[:count]

    def drop_details(self, excess: int) -> None:
        """Give up folded details until `excess` bytes are free or none is left."""
        before = self.fold.bytes
        self.fold.drop_details(excess)
        self.bytes += self.fold.bytes - before

    def folded(self, epoch: str) -> RunSnapshot:
        """What stands for the events that are not held any more; the held ones follow it."""
        return self._snapshot(self.fold, epoch)

    def whole(self, epoch: str, *, with_end: bool) -> RunSnapshot:
        """The run as it is now; without its end the terminal event is left to follow."""
        fold = self.fold.copy()
        for event in self.events:
            if event is not self.terminal or with_end:
                fold.add(event)
        return self._snapshot(fold, epoch, self.terminal if with_end else None)

    def _snapshot(self, fold: Fold, epoch: str, end: Event | None = None) -> RunSnapshot:
        completion, duration_ms = (None, None) if end is None else ending(end)
        ended = self.state == "terminal"
        return RunSnapshot(
            run_id=self.run_id,
            session_key=self.session_key,
            state="running" if ended and completion is None else self.state,
            stream_epoch=epoch,
            phase=self.phase,
            last_event_seq=fold.last_seq,
            last_delta_seq=fold.delta_seq,
            accumulated_text="".join(fold.texts),
            resume=fold.resume,
            actions=tuple(fold.actions.values()),
            applied_steers=tuple(self.steers),
            terminal=completion,
            duration_ms=duration_ms,
            started_at_ms=self.started_at_ms,
            open_approvals=() if ended else tuple(fold.approvals.values()),
        )


def ending(event: Event) -> tuple[Completion, int | None]:
    """How a terminal event ended its run, and after how many milliseconds where that is known."""
    match event.payload:
        case RunCompleted(completed=completion, duration_ms=duration_ms):
            return completion, duration_ms
        case RunFailed(reason=reason, run_id=run_id, session_key=session_key):
            failed = Completion(ok=False, error=reason, run_id=run_id, session_key=session_key)
            return failed, None
        case RunAbsorbed(run_id=run_id, absorbed_by=absorbed_by):
            error: dict[str, object] = {"code": "absorbed", "detail": absorbed_by}
            return Completion(ok=False, error=error, run_id=run_id), None
        case _:
            return Completion(ok=False, error="unreadable_completion"), None
