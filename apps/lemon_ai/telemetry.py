"""Numbers for whoever watches: an event has a name, measurements and facts, never a text or a key.

One `Telemetry` belongs to one `Client`; nothing is process-wide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from lemon_ai.types import Model, StreamOptions

log = logging.getLogger(__name__)

Subscriber = Callable[[str, Mapping[str, float], Mapping[str, object]], None]

# Every name that is emitted.
NAMES: Final = (
    "lemon_ai.dispatcher.dispatch",
    "lemon_ai.dispatcher.rejected",
    "lemon_ai.circuit_breaker.opened",
    "lemon_ai.circuit_breaker.closed",
    "lemon_ai.circuit_breaker.half_opened",
    "lemon_ai.circuit_breaker.reopened",
    "lemon_ai.compaction.started",
    "lemon_ai.compaction.succeeded",
    "lemon_ai.compaction.failed",
    "lemon_ai.compaction.retry",
    "lemon_ai.llm_call",
)


class Telemetry:
    """Passes events on to its subscribers, in the order in which they came."""

    def __init__(self) -> None:
        self._subscribers: dict[object, Subscriber] = {}

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Have `subscriber(name, measurements, metadata)` called; what is returned ends that."""
        token = object()
        self._subscribers[token] = subscriber

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    def emit(
        self, name: str, measurements: Mapping[str, float], metadata: Mapping[str, object]
    ) -> None:
        """Tell every subscriber; one that raises is logged and keeps nobody from hearing it."""
        for subscriber in tuple(self._subscribers.values()):
            try:
                subscriber(name, measurements, metadata)
            except Exception:  # a watcher must not end the call that it watches
                log.exception("telemetry.subscriber_raised", extra={"event": name})


_Carrier = TypeVar("_Carrier", Model, StreamOptions)
TRACE_HEADERS: Final = ("x-lemon-run-id", "x-lemon-session-key", "x-lemon-agent-id")


def trace_headers(model: Model, options: StreamOptions) -> dict[str, str]:
    """Which run a call belongs to, as its caller says in the headers."""
    headers = {**model.headers, **options.headers}
    return {n.lower(): value for n, value in headers.items() if n.lower() in TRACE_HEADERS}


def without_trace_headers(carrier: _Carrier) -> _Carrier:
    """The same without them: they are nobody's business outside."""
    if not any(name.lower() in TRACE_HEADERS for name in carrier.headers):
        return carrier
    kept = {n: value for n, value in carrier.headers.items() if n.lower() not in TRACE_HEADERS}
    return carrier.model_copy(update={"headers": kept})
