"""The line below the input."""

from __future__ import annotations

from collections.abc import Callable

from lemon_cli.chat.conversation import Settings
from lemon_cli.chat.spent import context, dollars
from lemon_cli.chat.transcript import Transcript
from lemon_cli.session_name import session_word


class Stopwatch:
    """For how long a run has been worked on, by `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._run_id: str | None = None
        self._began = 0.0

    def seconds(self, run_id: str) -> int:
        """Whole seconds since this run was asked about first without another in between."""
        if run_id != self._run_id:
            self._run_id, self._began = run_id, self._clock()
        return int(self._clock() - self._began)


def status_line(transcript: Transcript, settings: Settings, watch: Stopwatch) -> str:
    """Model, session, context and cost, how long the run takes, and the key that matters now."""
    model = settings.model or transcript.model
    spent = transcript.spent
    parts = [model] if model else []
    parts.append(session_word(settings.session_key))
    if gauge := context(spent.context_tokens, transcript.windows.get(model or "")):
        parts.append(gauge)
    if spent.cost_usd is not None:
        parts.append(dollars(spent.cost_usd))
    if settings.mode != "collect":
        parts.append(f"queue {settings.mode}")
    if (turn := transcript.active) is not None:
        parts.insert(0, duration(watch.seconds(turn.run_id)))
    parts.append("Esc aborts" if transcript.turns else "/help")
    return " · ".join(parts)


def duration(seconds: int) -> str:
    """Seconds, and minutes once there are some."""
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02} s"
