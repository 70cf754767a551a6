"""What the next run of a session may resume, kept for 24 hours."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import Enum
from typing import Final

from lemon_core.clock import Clock
from lemon_core.resume import ChatState
from lemon_core.store.core import ABSENT, DeleteKey, PutValue, Store
from lemon_core.store.rows import parse_row

CHAT: Final = "chat"
CHAT_TTL_MS: Final = 86_400_000


class ChatStateWish(Enum):
    """The types of `KEEP` and `DELETE`."""

    KEEP = "keep"
    DELETE = "delete"


KEEP: Final = ChatStateWish.KEEP
"""Leave the session's chat state as it is."""
DELETE: Final = ChatStateWish.DELETE
"""Remove the session's chat state."""

ChatStateChange = ChatState | ChatStateWish


def chat_state_write(
    session_key: str, change: ChatStateChange, now_ms: int
) -> list[PutValue | DeleteKey]:
    """The write that `change` means, stamped with its end; none for `KEEP`."""
    if change is KEEP:
        return []
    if isinstance(change, ChatState):
        stamped = replace(change, updated_at=now_ms, expires_at=now_ms + CHAT_TTL_MS)
        return [PutValue(CHAT, session_key, asdict(stamped))]
    return [DeleteKey(CHAT, session_key)]


class ChatStateStore:
    """Chat states by session key."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def get(self, session_key: str) -> ChatState | None:
        """The session's state; None when there is none or it has expired (it is then removed)."""
        value = await self._store.get(CHAT, session_key)
        if value is None:
            return None
        state = _chat_state(session_key, value)
        if not self._expired(state):
            return state
        await self._remove(session_key, value)
        return None

    async def put(self, session_key: str, state: ChatState) -> None:
        """Store `state`; it expires 24 hours from now."""
        now = self._clock.now_ms()
        await self._store.transaction(chat_state_write(session_key, state, now))

    async def delete(self, session_key: str) -> None:
        """Forget the session's state."""
        await self._store.delete(CHAT, session_key)

    async def sweep(self) -> int:
        """Remove what has expired; the number that went."""
        gone = 0
        for key, value in await self._store.list(CHAT):
            if isinstance(key, str) and self._expired(_chat_state(key, value)):
                gone += await self._remove(key, value)
        return gone

    def _expired(self, state: ChatState) -> bool:
        return state.expires_at is not None and self._clock.now_ms() > state.expires_at

    async def _remove(self, session_key: str, value: object) -> bool:
        # Compare-and-swap: a run may have put a fresh state since this one was read.
        return await self._store.compare_and_swap(CHAT, session_key, value, ABSENT)


def _chat_state(session_key: str, value: object) -> ChatState:
    return parse_row(ChatState, value, f"the chat state of {session_key}")
