"""Everything a run shows: the router's numbering, and copies on the session's topic.

The journal numbers what watchers see from 1, in the router's own sequence; the gateway's number
stays in the event's meta. On the bus the events stay as their publisher made them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lemon_core.approval_types import EVENT_TYPES
from lemon_core.approvals import TOPIC as APPROVALS
from lemon_core.bus import Bus, Subscription, run_topic, session_topic
from lemon_core.clock import Clock
from lemon_core.events import Event, RunPhaseChanged
from lemon_core.journal import Journal
from lemon_core.resume import render_conversation_key
from lemon_router.phases import PhaseTracker
from lemon_router.requests import Submission


class RunRelay:
    """Publishes and records for one run, from its admission to its end."""

    def __init__(self, submission: Submission, *, bus: Bus, journal: Journal, clock: Clock) -> None:
        self.run_id = submission.run_id
        self.session_key = submission.session_key
        self._bus = bus
        self._journal = journal
        self._clock = clock
        self._own: Subscription | None = None
        self.phases = PhaseTracker(
            self.run_id,
            self.session_key,
            render_conversation_key(submission.conversation_key),
            publish=self._publish_phase,
            now_ms=clock.now_ms,
        )
        journal.open(self.run_id, self.session_key)

    @contextmanager
    def listen(self) -> Iterator[Subscription]:
        """The run's events on the bus, without those that this relay publishes itself.

        What it asks and how that ended is among them, in its place.
        """

        def take(event: Event) -> None:
            if event.type in EVENT_TYPES and event.meta.get("run_id") == self.run_id:
                subscription.push(event)

        with (
            self._bus.subscribe(run_topic(self.run_id)) as subscription,
            self._bus.listening((APPROVALS,), take),
        ):
            self._own = subscription
            try:
                yield subscription
            finally:
                self._own = None

    def own_event(self, event_type: str, payload: object) -> Event:
        """An event that the router makes."""
        meta = {"run_id": self.run_id, "session_key": self.session_key}
        return Event(event_type, self._clock.now_ms(), payload, meta)

    def announce(self, event: Event) -> None:
        """Put an event of the router on the run's topic."""
        self._bus.publish_from(self._own, run_topic(self.run_id), event)

    def relay(self, event: Event) -> None:
        """Record `event` for watchers and copy it to the session's topic."""
        engine_seq = event.meta.get("event_seq")
        facts = {} if engine_seq is None else {"engine_event_seq": engine_seq}
        self._journal.append(self.run_id, event, **facts)
        self._bus.publish(session_topic(self.session_key), event)

    def publish(self, event_type: str, payload: object) -> None:
        """Announce and relay an event of the router."""
        event = self.own_event(event_type, payload)
        self.announce(event)
        self.relay(event)

    def _publish_phase(self, payload: RunPhaseChanged) -> None:
        self._journal.note(self.run_id, phase=payload.phase)
        self.publish("run_phase_changed", payload)
