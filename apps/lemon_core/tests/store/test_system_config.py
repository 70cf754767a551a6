"""Stored overrides of the configuration (specification lemon_core 10.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lemon_core.config.contributed import Contributed
from lemon_core.store import Store, StoreSettings, open_store
from lemon_core.store.system_config import InvalidOverride, SystemConfigStore
from lemon_core.testing.clock import FakeClock
from lemon_core.tests.config.pantry import Pantry

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store(StoreSettings("memory"), FakeClock()) as opened:
        yield opened


async def test_put_get_list_and_delete(store: Store) -> None:
    overrides = SystemConfigStore(store)
    await overrides.put("runtime.theme", "dark")
    await overrides.put('providers."my.proxy".models', ["a"])
    await overrides.put("gateway.queue", {"mode": "followup"})
    assert await overrides.get("runtime.theme") == "dark"
    assert await overrides.get("runtime") is None
    assert list((await SystemConfigStore(store).list()).items()) == [
        ("gateway.queue", {"mode": "followup"}),
        ('providers."my.proxy".models', ["a"]),
        ("runtime.theme", "dark"),
    ]
    assert await overrides.delete("runtime.theme")
    assert not await overrides.delete("runtime.theme")
    assert await overrides.get("runtime.theme") is None


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("gateway.max_concurrent_runs", 0, "must be at least 1, not 0"),
        ("gateway.max_runs", 1, "gateway.max_runs: unknown key$"),
        ("gateway.default_engine", "x", "removed: "),
        ("store.backend", "memory", "cannot be set in the store"),
        ("logging.level", "debug", "cannot be set in the store"),
        ("runtime.theme", None, "delete the override"),
        ("a = 1", 1, "no dotted path"),
        ("pantry.shelves", 1, "unknown section"),
    ],
)
async def test_what_no_configuration_may_have_is_not_stored(
    store: Store, path: str, value: object, told: str
) -> None:
    overrides = SystemConfigStore(store)
    with pytest.raises(InvalidOverride, match=told) as caught:
        await overrides.put(path, value)
    assert caught.value.path == path
    assert await overrides.list() == {}


async def test_contributed_sections_can_be_overridden(store: Store) -> None:
    overrides = SystemConfigStore(store, Contributed(sections=(("pantry", Pantry),)))
    await overrides.put("pantry.shelves", 4)
    with pytest.raises(InvalidOverride, match="at least 1"):
        await overrides.put("pantry.shelves", 0)
    assert await overrides.list() == {"pantry.shelves": 4}
