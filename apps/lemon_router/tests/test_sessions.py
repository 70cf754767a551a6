"""Starting a session over, and its sticky choices (specification lemon_router 8)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.bus import SYSTEM_TOPIC, Bus
from lemon_core.resume import ChatState
from lemon_core.router_views import SessionBusy
from lemon_core.store import (
    ChatStateStore,
    PolicyStore,
    RunStore,
    SessionSettingsStore,
    Store,
)
from lemon_core.store.memory import MemoryBackend
from lemon_core.store.wrappers import UNSET
from lemon_core.system_events import SessionReset
from lemon_core.testing import FakeClock
from lemon_core.tool_policy import ToolPolicy
from lemon_router import sessions
from lemon_router.admission import AdmissionStore
from lemon_router.sessions import Sessions

pytestmark = pytest.mark.anyio

KEY = "agent:default:main:sub:x"


class Runs:
    """A router whose session ends when it is told to, or never."""

    def __init__(self, *, ends: bool = True) -> None:
        self.aborted: list[tuple[str, str]] = []
        self._ends = ends

    async def abort_session(self, session_key: str, reason: str) -> None:
        self.aborted.append((session_key, reason))

    async def session_idle(self, session_key: str) -> None:
        if not self._ends:
            await anyio.sleep_forever()


class Scene:
    def __init__(self, *, ends: bool = True) -> None:
        clock, store = FakeClock(), Store(MemoryBackend())
        self.store, self.router, self.bus = store, Runs(ends=ends), Bus()
        self.runs, self.policies = RunStore(store, clock), PolicyStore(store)
        self.chat_states = ChatStateStore(store, clock)
        self.settings = SessionSettingsStore(store, clock)
        self.sessions = Sessions(
            self.router, self.runs, self.policies, self.settings, AdmissionStore(store), self.bus
        )

    async def fill(self) -> None:
        await self.store.open()
        state = ChatState(last_engine="lemon", last_resume_token="t", updated_at=1)
        summary = {"session_key": KEY, "completed": {"ok": True}, "prompt": "hi"}
        await self.runs.begin("run_1", b"d", session_key=KEY)
        await self.runs.finalize("run_1", summary, state)
        await self.policies.put("session", ToolPolicy.of_profile("read_only"), KEY)
        await self.sessions.patch(KEY, "m", "high")


@pytest.mark.behaviour("lemon_router.44")
async def test_a_reset_ends_the_runs_and_forgets_everything() -> None:
    scene = Scene()
    await scene.fill()
    with scene.bus.subscribe(SYSTEM_TOPIC) as events:
        await scene.sessions.reset(KEY)
    assert [event.payload for event in await events.receive_batch()] == [
        SessionReset(session_key=KEY)
    ]
    assert scene.router.aborted == [(KEY, "new_session")]
    assert await scene.runs.history(KEY) == []
    assert await scene.runs.get_session(KEY) is None
    assert await scene.chat_states.get(KEY) is None
    assert await scene.policies.get("session", KEY) is None
    assert (await scene.settings.get(KEY)).model is None
    await scene.sessions.reset(KEY)


async def test_a_session_that_does_not_end_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RESET_WAIT_S", 0.01)
    scene = Scene(ends=False)
    await scene.fill()
    with pytest.raises(SessionBusy):
        await scene.sessions.reset(KEY)
    assert len(await scene.runs.history(KEY)) == 1


async def test_choices_are_changed_one_by_one_and_taken_back() -> None:
    scene = Scene()
    await scene.store.open()
    assert (await scene.sessions.patch(KEY, "m", UNSET)).model == "m"
    changed = await scene.sessions.patch(KEY, None, "low")
    assert (changed.model, changed.thinking_level) == (None, "low")
