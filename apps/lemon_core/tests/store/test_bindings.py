"""Projects bound at run time (specification lemon_core 3.5, 8.3)."""

from __future__ import annotations

import logging

import pytest

from lemon_core.store import ProjectBindingStore, Store, StoreUnavailable

pytestmark = pytest.mark.anyio


async def test_an_override_holds_for_exactly_its_chat_or_topic(store: Store) -> None:
    bindings = ProjectBindingStore(store)
    await bindings.put_override("telegram", -5, None, "chat")
    await bindings.put_override("telegram", -5, 7, "topic")
    await bindings.put_override("discord", "-5", None, "other")
    assert await bindings.get_override("telegram", -5) == "chat"
    assert await bindings.get_override("telegram", -5, 7) == "topic"
    assert await bindings.get_override("telegram", -5, 8) is None
    assert await bindings.get_override("telegram", "-5") is None
    await bindings.delete_override("telegram", -5)
    await bindings.delete_override("telegram", -5)
    assert await bindings.get_override("telegram", -5) is None
    assert await bindings.get_override("telegram", -5, 7) == "topic"


async def test_projects_made_at_run_time_have_a_root(store: Store) -> None:
    bindings = ProjectBindingStore(store)
    await bindings.put_project("site", "~/site")
    await bindings.put_project("site", "~/www")
    assert await bindings.get_root("site") == "~/www"
    assert await bindings.get_root("absent") is None
    assert await bindings.list_projects() == {"site": "~/www"}
    await bindings.delete_project("site")
    assert await bindings.list_projects() == {}


async def test_reads_that_fail_answer_as_if_nothing_were_stored(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    bindings = ProjectBindingStore(store)
    await bindings.put_project("good", "/good")
    await store.put("projects_dynamic", "bad", {"path": "/bad"})
    await store.put("project_overrides", ("telegram", 1), "text")
    with caplog.at_level(logging.WARNING, logger="lemon"):
        assert await bindings.get_override("telegram", 1) is None
        assert await bindings.get_root("bad") is None
        assert await bindings.list_projects() == {"good": "/good"}
        assert len(caplog.records) == 3
        await store.close()
        assert await bindings.get_override("telegram", 1) is None
        assert await bindings.get_root("good") is None
        assert await bindings.list_projects() == {}
        assert len(caplog.records) == 6
    with pytest.raises(StoreUnavailable):
        await bindings.put_override("telegram", 1, None, "p")
