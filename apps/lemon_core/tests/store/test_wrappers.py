"""The smaller typed stores (specification lemon_core 8.3)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from lemon_core.store import (
    PolicyStore,
    ProgressStore,
    SessionSettings,
    SessionSettingsStore,
    Store,
    StoreCorrupt,
    StoreUnavailable,
)
from lemon_core.testing import FakeClock
from lemon_core.tests.store.backends import make_store
from lemon_core.tool_policy import InvalidToolPolicy, ToolPolicy

pytestmark = pytest.mark.anyio


async def test_progress_messages_lead_to_their_run(store: Store) -> None:
    progress = ProgressStore(store)
    progress.put("s", 5, "run_1")
    progress.put("s", "5", "run_2")
    assert (progress.get("s", 5), progress.get("s", "5")) == ("run_1", "run_2")
    progress.delete("s", 5)
    progress.delete("s", 5)
    assert (progress.get("s", 5), await store.backend.list("progress")) == (None, [])


async def test_session_settings_are_patched_field_by_field(store: Store, clock: FakeClock) -> None:
    settings = SessionSettingsStore(store, clock)
    assert await settings.get("s") == SessionSettings()
    await settings.patch("s", model="m")
    await clock.advance(1)
    patched = await settings.patch("s", thinking_level="high")
    assert patched == SessionSettings("m", "high", clock.now_ms())
    assert await settings.get("s") == patched
    assert (await settings.patch("s", model=None)).model is None
    await settings.delete("s")
    assert await settings.get("s") == SessionSettings()


async def test_concurrent_patches_both_count(store: Store, clock: FakeClock) -> None:
    settings = SessionSettingsStore(store, clock)

    async def patch(field: str) -> None:
        if field == "model":
            await settings.patch("s", model="m")
        else:
            await settings.patch("s", thinking_level="low")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(patch, "model")
            tasks.start_soon(patch, "thinking_level")
    assert await settings.get("s") == SessionSettings("m", "low", clock.now_ms())


async def test_policies_by_scope_and_key(store: Store) -> None:
    policies = PolicyStore(store)
    policy = ToolPolicy.parse({"deny": ["bash"]})
    assert await policies.put("agent", {"deny": ["bash"]}, "default") == policy
    await policies.put("runtime", policy)
    assert await policies.get("agent", "default") == policy
    assert await policies.get("session", "default") is None
    assert await policies.get("runtime") == policy
    assert await policies.list("agent") == {"default": policy}
    await policies.delete("agent", "default")
    assert await policies.list("agent") == {}


async def test_an_invalid_policy_is_not_stored(store: Store) -> None:
    policies = PolicyStore(store)
    with pytest.raises(InvalidToolPolicy):
        await policies.put("agent", {"denied": ["bash"]}, "default")
    assert await policies.get("agent", "default") is None


async def test_a_damaged_or_unreachable_policy_is_never_no_policy(
    tmp_path: Path, clock: FakeClock
) -> None:
    store = make_store("sqlite", tmp_path, clock)
    await store.open()
    policies = PolicyStore(store)
    await store.put("session_policies", "s", {"allow": "everything"})
    with pytest.raises(StoreCorrupt):
        await policies.get("session", "s")
    with pytest.raises(StoreCorrupt):
        await policies.list("session")
    await store.close()
    with pytest.raises(StoreUnavailable):
        await policies.get("agent", "default")
    with pytest.raises(StoreUnavailable):
        await policies.list("agent")
