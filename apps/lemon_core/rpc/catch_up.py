"""From a stream with snapshots to plain events: what a snapshot adds to what is already known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from lemon_core.bridges import ActionState, RunSnapshot, StreamItem
from lemon_core.clock import Clock
from lemon_core.events import (
    Action,
    ActionKind,
    ActionPhase,
    ApprovalRequested,
    ApprovalResolved,
    Delta,
    EngineAction,
    EngineStarted,
    Event,
    PendingApproval,
    RunCompleted,
)


class CatchUp:
    """One run as a reader of events knows it.

    `events` passes events on and turns a snapshot into the events that are new to the reader: one
    delta with the missing tail of the text, the actions that changed, the questions that were asked
    or are open no more, and the end. They carry `meta.synthetic`; only the end has an `event_seq`.
    """

    def __init__(self, run_id: str, clock: Clock) -> None:
        self._run_id, self._clock = run_id, clock
        self._text_chars = 0
        self._started = False
        self._actions: dict[str, ActionState] = {}
        self._questions: dict[str, PendingApproval] = {}

    def events(self, item: StreamItem) -> list[Event]:
        """The events to pass on for `item`."""
        if isinstance(item, Event):
            self._note(item)
            return [item]
        return self._missing(item)

    def _note(self, event: Event) -> None:
        match event.payload:
            case Delta(text=text):
                self._text_chars += len(text)
            case EngineAction() as progress:
                state = _state_of(progress)
                self._actions[state.id] = state
            case ApprovalRequested(pending=pending):
                self._questions[pending.id] = pending
            case ApprovalResolved(approval_id=approval_id):
                self._questions.pop(approval_id, None)
            case EngineStarted():
                self._started = True
            case _:
                pass

    def _missing(self, snapshot: RunSnapshot) -> list[Event]:
        events: list[Event] = []
        if snapshot.resume is not None and not self._started:
            self._started = True
            started = EngineStarted(
                resume=snapshot.resume, run_id=self._run_id, session_key=snapshot.session_key
            )
            events.append(self._event("engine_started", started, snapshot))
        tail = snapshot.accumulated_text[self._text_chars :]
        if tail:
            self._text_chars += len(tail)
            # A text that came without its numbers still is one piece of the answer.
            delta = Delta(run_id=self._run_id, seq=max(1, snapshot.last_delta_seq), text=tail)
            events.append(self._event("delta", delta, snapshot))
        for action in snapshot.actions:
            known = self._actions.get(action.id)
            if known != action and action.kind in get_args(ActionKind):
                self._actions[action.id] = action
                events.append(self._event("engine_action", _progress_of(action), snapshot))
        events += self._questions_of(snapshot)
        if snapshot.terminal is not None:
            end = RunCompleted(completed=snapshot.terminal, duration_ms=snapshot.duration_ms)
            seq = snapshot.last_event_seq
            events.append(
                self._event("run_completed", end, snapshot, {"event_seq": seq} if seq else None)
            )
        return events

    def _questions_of(self, snapshot: RunSnapshot) -> list[Event]:
        known, is_open = self._questions, {pending.id for pending in snapshot.open_approvals}
        events: list[Event] = []
        for pending in [known[name] for name in known if name not in is_open]:
            # Who answered it and how is gone: for whoever still shows it, it cannot be answered.
            gone = ApprovalResolved(
                approval_id=pending.id,
                decision="timeout",
                pending=pending,
                reason="its end was not seen here",
            )
            events.append(self._event("approval_resolved", gone, snapshot))
        for pending in snapshot.open_approvals:
            if pending.id not in known:
                asked = ApprovalRequested(approval_id=pending.id, pending=pending)
                events.append(self._event("approval_requested", asked, snapshot))
        self._questions = {pending.id: pending for pending in snapshot.open_approvals}
        return events

    def _event(
        self,
        kind: str,
        payload: object,
        snapshot: RunSnapshot,
        more: Mapping[str, object] | None = None,
    ) -> Event:
        meta = {
            "run_id": self._run_id,
            "session_key": snapshot.session_key,
            "synthetic": True,
            **(more or {}),
        }
        return Event(kind, self._clock.now_ms(), payload, meta)


def _state_of(progress: EngineAction) -> ActionState:
    action = progress.action
    return ActionState(
        action.id, action.kind, action.title, progress.phase, progress.ok, action.detail
    )


def _progress_of(state: ActionState) -> EngineAction:
    phase = state.phase if state.phase in get_args(ActionPhase) else "updated"
    return EngineAction(
        action=Action(
            id=state.id,
            kind=cast(ActionKind, state.kind),
            title=state.title,
            detail=None if state.detail is None else dict(state.detail),
        ),
        phase=cast(ActionPhase, phase),
        ok=state.ok,
    )
