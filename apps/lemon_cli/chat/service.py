"""What a conversation needs of Lemon, from a running server or from a runtime of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from lemon_cli.access import LocalAccess, RemoteAccess, RunAccess
from lemon_core.bridges import MODEL_INFO, ModelInfo, RouterBridge
from lemon_core.events import PendingApproval
from lemon_core.router_views import SessionInfo, SessionView
from lemon_core.store.wrappers import SessionSettings, Unset

if TYPE_CHECKING:
    from lemon_core.rpc.router_client import RouterClient
    from lemon_core.runtime import Runtime


class ChatService(RunAccess, Protocol):
    """Runs, and what is said about sessions and questions. Calls raise `LemonError`.

    `where` is for people; `outlives` tells that runs go on when the conversation is left.
    """

    where: str
    outlives: bool

    async def sessions(self, limit: int) -> list[SessionInfo]:
        """Stored and active sessions, last used first."""

    async def session(self, session_key: str) -> SessionView | None:
        """One session with its choices and recent runs; None when it is unknown."""

    async def choose(
        self, session_key: str, *, model: str | Unset | None, thinking_level: str | Unset | None
    ) -> SessionSettings:
        """Change what the session keeps (None takes one back); what it keeps then."""

    async def questions(self) -> list[PendingApproval]:
        """The open questions of every session, oldest first."""

    async def default_model(self) -> str | None:
        """Which model answers when nobody names one, in one line; None when it is not known."""


class RemoteChat(RemoteAccess):
    """A running server."""

    where = "the running server"
    outlives = True

    def __init__(self, client: RouterClient) -> None:
        super().__init__(client)
        self._work = client

    async def sessions(self, limit: int) -> list[SessionInfo]:
        """As the server tells."""
        return await self._work.list_sessions(limit=limit)

    async def session(self, session_key: str) -> SessionView | None:
        """As the server tells."""
        return await self._work.get_session(session_key)

    async def choose(
        self, session_key: str, *, model: str | Unset | None, thinking_level: str | Unset | None
    ) -> SessionSettings:
        """Kept by the server."""
        return await self._work.patch_session(
            session_key, model=model, thinking_level=thinking_level
        )

    async def questions(self) -> list[PendingApproval]:
        """As the server tells."""
        return await self._work.list_approvals()

    async def default_model(self) -> str | None:
        """The server does not say."""
        return None


class LocalChat(LocalAccess):
    """A runtime of this process, which ends with the conversation."""

    where = "this process"
    outlives = False

    def __init__(self, runtime: Runtime) -> None:
        from lemon_cli.stored_work import StoredWork

        super().__init__(RouterBridge(runtime.capabilities), runtime.bus, runtime.approvals)
        self._work = StoredWork(runtime.runs, runtime.session_settings)
        self._settings, self._questions = runtime.session_settings, runtime.approvals
        self._model_info = cast("ModelInfo | None", runtime.capabilities.get(MODEL_INFO))

    async def sessions(self, limit: int) -> list[SessionInfo]:
        """From the store."""
        return await self._work.list_sessions(limit=limit)

    async def session(self, session_key: str) -> SessionView | None:
        """From the store."""
        return await self._work.get_session(session_key)

    async def choose(
        self, session_key: str, *, model: str | Unset | None, thinking_level: str | Unset | None
    ) -> SessionSettings:
        """Kept in the store."""
        return await self._settings.patch(session_key, model=model, thinking_level=thinking_level)

    async def questions(self) -> list[PendingApproval]:
        """From the store."""
        return await self._questions.pending_approvals()

    async def default_model(self) -> str | None:
        """As the agent says."""
        return None if self._model_info is None else await self._model_info.describe_default()
