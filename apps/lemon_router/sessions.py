"""Changes to a session as a whole: its sticky choices, and starting it over."""

from __future__ import annotations

from typing import Final, Protocol

import anyio

from lemon_core.bus import SYSTEM_TOPIC, Bus
from lemon_core.router_views import SessionBusy
from lemon_core.store import PolicyStore, RunStore, SessionSettingsStore
from lemon_core.store.wrappers import SessionSettings, Unset
from lemon_core.system_events import SessionReset
from lemon_router.admission import AdmissionStore

RESET_WAIT_S: Final = 10.0
RESET_REASON: Final = "new_session"


class SessionRuns(Protocol):
    """The part of the router that a reset needs."""

    async def abort_session(self, session_key: str, reason: str) -> None:
        """Drop what the session has queued and cancel its active run."""

    async def session_idle(self, session_key: str) -> None:
        """Return when nothing of the session is active, queued or being steered."""


class Sessions:
    """Resets and settings of the sessions of one store."""

    def __init__(
        self,
        router: SessionRuns,
        runs: RunStore,
        policies: PolicyStore,
        settings: SessionSettingsStore,
        admissions: AdmissionStore,
        bus: Bus,
    ) -> None:
        self._router, self._runs, self._admissions = router, runs, admissions
        self._policies, self._settings = policies, settings
        self._bus = bus

    async def reset(self, session_key: str) -> None:
        """End what the session has, then forget its history, texts, chat state, policy and choices.

        Its runs end first: the end of a run writes what the next one would resume. Raises
        `SessionBusy` when they do not end, and nothing is forgotten then; and `StoreError`.
        Whoever keeps something for the session in this process hears `session_reset`.
        """
        await self._router.abort_session(session_key, RESET_REASON)
        with anyio.move_on_after(RESET_WAIT_S) as waiting:
            await self._router.session_idle(session_key)
        if waiting.cancelled_caught:
            raise SessionBusy(session_key)
        await self._runs.delete_session(session_key)
        await self._policies.delete("session", session_key)
        await self._settings.delete(session_key)
        await self._forget_texts(session_key)
        self._bus.publish_event(
            SYSTEM_TOPIC, "session_reset", SessionReset(session_key=session_key)
        )

    async def _forget_texts(self, session_key: str) -> None:
        """Ids and digests of the records stay, for a request that is sent again later."""
        for record in await self._admissions.all():
            if record.session_key == session_key and record.terminal:
                await self._admissions.advance(record, prompt="", context="", command="")

    async def patch(
        self, session_key: str, model: str | Unset | None, thinking_level: str | Unset | None
    ) -> SessionSettings:
        """Change the given choices (None takes one back); what they are then."""
        return await self._settings.patch(session_key, model=model, thinking_level=thinking_level)
