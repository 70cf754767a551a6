"""Conversations that no longer fit: the marker that says so, and the prompt that goes on from it.

A run that overflowed, or came near its model's window, leaves a marker for its session. The next
message of a channel starts afresh with a transcript of what was said last, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal, Protocol

from lemon_core.clock import Clock
from lemon_core.config.model import LemonConfig
from lemon_core.errors import is_context_overflow
from lemon_core.events import RunCompleted
from lemon_core.logs import get_logger
from lemon_core.store import ABSENT, RunRecord, Store, StoreError
from lemon_core.store.rows import parse_row
from lemon_core.usage import context_tokens
from lemon_router.requests import Submission

log = get_logger("lemon_router.compaction")

TABLE: Final = "pending_compaction"
FRESH_MS: Final = 12 * 3_600_000
HISTORY_RUNS: Final = 8
TRANSCRIPT_CHARS: Final = 8_000
NOTICE: Final = (
    "The earlier conversation had grown too long and was cut. What was said last stands below; "
    "go on from there."
)


@dataclass(frozen=True, slots=True)
class Marker:
    """Why the session's next message is to start afresh."""

    reason: Literal["overflow", "near_limit"]
    session_key: str
    set_at_ms: int | None = None
    input_tokens: int | None = None
    threshold_tokens: int | None = None
    context_window_tokens: int | None = None
    token_source: str | None = None


class History(Protocol):
    """The finished runs of a session (core's `RunStore`)."""

    async def history(self, session_key: str, limit: int = ...) -> list[RunRecord]:
        """The newest `limit`, newest first; raises `StoreError`."""


class PendingCompactions:
    """The table `pending_compaction`, and what is made of it."""

    def __init__(self, store: Store, history: History, clock: Clock) -> None:
        self._store, self._history, self._clock = store, history, clock

    async def put(self, marker: Marker) -> None:
        """Leave a marker; a failure is logged, for the run that caused it is over."""
        try:
            await self._store.put(TABLE, marker.session_key, asdict(marker))
        except StoreError as exc:
            log.warning("compaction.not_marked", session_key=marker.session_key, error=str(exc))

    async def rewritten(self, session_key: str, prompt: str) -> tuple[str, Marker] | None:
        """The prompt that goes on from the marker of the session; None when nothing is to be done.

        A marker that is stale, or has no conversation to go on from, is removed. Never raises.
        """
        try:
            value = await self._store.load(TABLE, session_key)
            if value is None:
                return None
            marker = parse_row(Marker, value, f"the compaction marker of {session_key}")
            transcript = await self._transcript(session_key) if self._fresh(marker) else ""
            if not transcript:
                await self.consume(marker)
                return None
        except StoreError as exc:
            log.warning("compaction.unreadable", session_key=session_key, error=str(exc))
            return None
        return _rewritten(transcript, prompt), marker

    async def consume(self, marker: Marker) -> None:
        """Remove `marker`, unless there is a newer one by now. Raises `StoreError`."""
        await self._store.compare_and_swap(TABLE, marker.session_key, asdict(marker), ABSENT)

    def _fresh(self, marker: Marker) -> bool:
        return marker.set_at_ms is None or self._clock.now_ms() - marker.set_at_ms <= FRESH_MS

    async def _transcript(self, session_key: str) -> str:
        runs = await self._history.history(session_key, HISTORY_RUNS)
        lines: list[str] = []
        for run in reversed(runs):
            lines += _turn(run.summary or {})
        return "\n".join(lines)[-TRANSCRIPT_CHARS:]


def _turn(summary: Mapping[str, object]) -> list[str]:
    completed = summary.get("completed")
    answer = completed.get("answer") if isinstance(completed, Mapping) else None
    said = (("User", summary.get("prompt")), ("Assistant", answer))
    return [f"{who}: {text}" for who, text in said if isinstance(text, str) and text.strip()]


def _rewritten(transcript: str, prompt: str) -> str:
    text = prompt if prompt.strip() else "Continue."
    return (
        f"{NOTICE}\n\n<previous_conversation>\n{transcript}\n</previous_conversation>\n\n"
        f"User: {text}"
    )


class Windows(Protocol):
    """How much fits into models."""

    def window_of(self, model: str) -> int | None:
        """The window of `model` in tokens; None when it is unknown."""

    def estimate(self, text: str) -> int:
        """About how many tokens `text` has."""


def marker_of(
    submission: Submission,
    completed: RunCompleted,
    config: LemonConfig,
    windows: Windows,
    now_ms: int,
) -> Marker | None:
    """The marker that the end of a run leaves; None for most."""
    end = completed.completed
    if not config.runtime.compaction.enabled:
        return None
    if not end.ok:
        if not is_context_overflow(end.error):
            return None
        return Marker("overflow", submission.session_key, now_ms)
    return _near_limit(submission, completed, config, windows, now_ms)


def _near_limit(
    submission: Submission,
    completed: RunCompleted,
    config: LemonConfig,
    windows: Windows,
    now_ms: int,
) -> Marker | None:
    section = config.runtime.compaction
    model = submission.meta.get("model")
    window = section.context_window_tokens
    if window is None and isinstance(model, str):
        window = windows.window_of(model)
    if window is None:
        return None
    by_reserve, by_ratio = window - section.reserve_tokens, int(window * section.trigger_ratio)
    threshold = min(max(by_reserve, 1), max(by_ratio, 1))
    used = context_tokens(completed.completed.usage or {})
    tokens = windows.estimate(submission.command.prompt) if used is None else used
    if tokens < threshold:
        return None
    return Marker(
        "near_limit",
        submission.session_key,
        now_ms,
        input_tokens=tokens,
        threshold_tokens=threshold,
        context_window_tokens=window,
        token_source="char_estimate" if used is None else "usage",
    )


class CatalogWindows:
    """Windows of the models that `lemon_ai` knows; the catalogue is read at the first question."""

    def window_of(self, model: str) -> int | None:
        """See `Windows`: as it is written, then behind a colon, a slash, and both."""
        # Heavy, and only ends of channel runs ask.
        from lemon_ai.catalog import Catalog

        catalog = Catalog()
        behind_colon = model.partition(":")[2]
        for name in (
            model,
            behind_colon,
            model.rpartition("/")[2],
            behind_colon.rpartition("/")[2],
        ):
            found = catalog.find_by_id(name) if name else None
            if found is not None:
                return found.context_window
        return None

    def estimate(self, text: str) -> int:
        """See `Windows`."""
        from lemon_ai.tokens import estimate_chars

        return estimate_chars(text)
