from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lemon_agent.workspace.heartbeats import HeartbeatStore
from lemon_agent.workspace.home import TEMPLATES, ensure_workspace
from lemon_core.store import StoreCorrupt, StoreSettings, open_store
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


def test_only_what_is_missing_is_written(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "workspace"
    assert ensure_workspace(home) == list(TEMPLATES)
    assert ensure_workspace(home) == []
    (home / "USER.md").write_text("mine")
    (home / "SOUL.md").unlink()
    assert ensure_workspace(home) == ["SOUL.md"]
    assert (home / "USER.md").read_text() == "mine"
    assert all((home / name).read_text().strip() for name in TEMPLATES)
    assert stat.S_IMODE((home / "SOUL.md").stat().st_mode) == 0o600


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").symlink_to(tmp_path / "elsewhere")
    assert "SOUL.md" not in ensure_workspace(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


async def test_heartbeats_are_maps_by_agent() -> None:
    async with open_store(StoreSettings("memory"), FakeClock()) as store:
        heartbeats = HeartbeatStore(store)
        await heartbeats.put("config", "a", {"every_ms": 5})
        await heartbeats.put("last", "a", {"ok": True})
        assert await heartbeats.get("config", "a") == {"every_ms": 5}
        assert await heartbeats.list("last") == {"a": {"ok": True}}
        await heartbeats.delete("config", "a")
        assert await heartbeats.get("config", "a") is None
        await store.put("heartbeat_last", "a", 7)
        with pytest.raises(StoreCorrupt, match="heartbeat_last of a is no map"):
            await heartbeats.get("last", "a")
