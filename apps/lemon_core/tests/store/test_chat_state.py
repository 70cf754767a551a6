"""Chat state (specification lemon_core 8.3)."""

from __future__ import annotations

import pytest

from lemon_core.resume import ChatState
from lemon_core.store import ChatStateStore, Store, StoreCorrupt
from lemon_core.store.chat_state import CHAT_TTL_MS
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

STATE = ChatState("lemon", "sess_1")


@pytest.fixture
def chat(store: Store, clock: FakeClock) -> ChatStateStore:
    return ChatStateStore(store, clock)


async def test_a_state_comes_back_stamped(chat: ChatStateStore, clock: FakeClock) -> None:
    now = clock.now_ms()
    await chat.put("s", STATE)
    assert await chat.get("s") == ChatState("lemon", "sess_1", now, now + CHAT_TTL_MS)
    await chat.delete("s")
    assert await chat.get("s") is None


@pytest.mark.behaviour("lemon_core.25")
async def test_an_expired_state_reads_as_none_and_is_removed(
    chat: ChatStateStore, store: Store, clock: FakeClock
) -> None:
    await chat.put("s", STATE)
    await clock.advance(CHAT_TTL_MS)
    assert await chat.get("s") is not None
    await clock.advance(1)
    assert await chat.get("s") is None
    assert await store.list("chat") == []


@pytest.mark.behaviour("lemon_core.25")
async def test_the_sweep_removes_expired_states_from_disk_and_mirror(
    chat: ChatStateStore, store: Store, clock: FakeClock
) -> None:
    await chat.put("old", STATE)
    await clock.advance(CHAT_TTL_MS)
    await chat.put("new", STATE)
    await clock.advance(1)
    assert await chat.sweep() == 1
    assert await store.backend.get("chat", b'"old"') is None
    assert [key for key, _ in await store.list("chat")] == ["new"]


@pytest.mark.parametrize("value", ["text", {"last_engine": 1}, {"expires_at": "soon"}], ids=repr)
async def test_a_damaged_state_is_corrupt(
    chat: ChatStateStore, store: Store, value: object
) -> None:
    await store.put("chat", "s", value)
    with pytest.raises(StoreCorrupt):
        await chat.get("s")
