"""The line below the input."""

from __future__ import annotations

from lemon_cli.chat.conversation import Settings
from lemon_cli.chat.spent import context, dollars
from lemon_cli.chat.transcript import Transcript
from lemon_cli.session_name import session_word


def status_line(transcript: Transcript, settings: Settings) -> str:
    """Model, session, context and cost, and the key that matters now."""
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
    parts.append("Ctrl+C aborts" if transcript.turns else "/help")
    return " · ".join(parts)
