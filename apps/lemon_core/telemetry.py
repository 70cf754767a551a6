"""Numbers about what happens: emitted inline to whoever attached, stored nowhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from lemon_core.logs import get_logger

log = get_logger("lemon_core.telemetry")

Measurements = Mapping[str, float]
Metadata = Mapping[str, object]
Handler = Callable[[str, Measurements, Metadata], None]

_NOTHING: Mapping[str, object] = MappingProxyType({})
_NO_NUMBERS: Measurements = MappingProxyType({})


class Telemetry:
    """The handlers of one runtime; with none attached an emit costs next to nothing."""

    def __init__(self) -> None:
        # Replaced, never changed in place, so that a handler may attach and detach while it runs.
        self._handlers: tuple[tuple[str, Handler], ...] = ()

    def emit(
        self,
        name: str,
        measurements: Measurements = _NO_NUMBERS,
        metadata: Metadata = _NOTHING,
    ) -> None:
        """Hand the event to each handler whose prefix `name` starts with, in order of attaching.

        Never raises: a handler that does is logged and detached.
        """
        for prefix, handler in self._handlers:
            if not name.startswith(prefix):
                continue
            try:
                handler(name, measurements, metadata)
            except Exception:  # the emitter must not suffer from whoever listens
                log.exception("telemetry.handler_detached", prefix=prefix, name=name)
                self._detach(prefix, handler)

    def is_heard(self, prefix: str) -> bool:
        """Whether anybody listens to events that start with `prefix`: what is costly to measure
        need not be measured for nobody."""
        return any(prefix.startswith(p) or p.startswith(prefix) for p, _ in self._handlers)

    def attach(self, prefix: str, handler: Handler) -> Callable[[], None]:
        """Call `handler(name, measurements, metadata)` for events below `prefix` ("" is all).

        Returns the function that detaches it again; calling that twice is harmless.
        """
        self._handlers = (*self._handlers, (prefix, handler))
        return lambda: self._detach(prefix, handler)

    @contextmanager
    def span(self, name: str, metadata: Metadata = _NOTHING) -> Iterator[None]:
        """Emit `<name>.start`, then `<name>.stop` or `<name>.exception`, with `duration` in
        monotonic nanoseconds; the exception's type is in the metadata as `error`."""
        started = time.monotonic_ns()
        self.emit(f"{name}.start", {"monotonic_ns": started}, metadata)
        try:
            yield
        except BaseException as exc:
            taken = {"duration": time.monotonic_ns() - started}
            self.emit(f"{name}.exception", taken, {**metadata, "error": type(exc).__name__})
            raise
        self.emit(f"{name}.stop", {"duration": time.monotonic_ns() - started}, metadata)

    def _detach(self, prefix: str, handler: Handler) -> None:
        kept = [(p, h) for p, h in self._handlers if (p, h) != (prefix, handler)]
        self._handlers = tuple(kept)
