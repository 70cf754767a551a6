"""Which agent, project and queue mode belong to a chat (specification lemon_core 3.5)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from pydantic import ValidationError

from lemon_core.bindings import Binding, BindingResolver, ChatScope, Project
from lemon_core.config.model import LemonConfig
from lemon_core.paths import PathSettings
from lemon_core.store import ProjectBindingStore, StoreSettings, StoreUnavailable, open_store
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

PATHS = PathSettings(Path("/home/me"))
CHAT = ChatScope(transport="telegram", chat_id=1)
TOPIC = ChatScope(transport="telegram", chat_id=1, topic_id=7)
ROWS: dict[str, object] = {
    "gateway": {
        "projects": {"app": {"root": "~/app"}, "site": {"root": "/srv/site"}},
        "bindings": [
            {"transport": "telegram", "chat_id": 1, "project": "app", "queue_mode": "steer"},
            {"transport": "telegram", "chat_id": 1, "topic_id": 7, "project": "site"},
            {"transport": "telegram", "chat_id": 1, "topic_id": 7, "agent_id": "late"},
            {"transport": "telegram", "chat_id": 2, "agent_id": "coder", "queue_mode": "new"},
            {"transport": "telegram", "chat_id": 3, "agent_id": "", "project": "gone"},
        ],
    }
}


def resolver(changes: ProjectBindingStore | None = None) -> BindingResolver:
    """What the configuration above says."""
    config = LemonConfig.model_validate(ROWS)
    return BindingResolver.of(config.gateway, paths=PATHS, changes=changes)


def scope(chat_id: int | str, topic_id: int | str | None = None) -> ChatScope:
    return ChatScope(transport="telegram", chat_id=chat_id, topic_id=topic_id)


@pytest.mark.behaviour("lemon_core.5")
def test_a_topics_binding_beats_its_chats_and_the_first_of_equals_counts() -> None:
    found = resolver()
    assert found.resolve_binding(CHAT) == Binding(
        transport="telegram", chat_id=1, project="app", queue_mode="steer"
    )
    assert found.resolve_binding(TOPIC) == Binding(
        transport="telegram", chat_id=1, topic_id=7, project="site"
    )
    assert found.resolve_binding(scope(1, 8)) == found.resolve_binding(CHAT)
    for nobody in (scope(9), scope("1"), ChatScope(transport="discord", chat_id=1)):
        assert found.resolve_binding(nobody) is None


def test_agent_and_queue_mode_come_from_the_winning_binding_alone() -> None:
    found = resolver()
    agents = [found.resolve_agent_id(scope(number)) for number in (1, 2, 3, 9)]
    assert agents == ["default", "coder", "default", "default"]
    modes = [found.resolve_queue_mode(scope(number)) for number in (1, 2, 9)]
    assert modes == ["steer", None, None]
    assert found.resolve_queue_mode(TOPIC) is None


@pytest.mark.parametrize(
    ("gateway", "place"),
    [
        ({"bindings": [{"transport": "telegram"}]}, ("bindings", 0, "chat_id")),
        ({"bindings": [{"transport": "", "chat_id": 1}]}, ("bindings", 0, "transport")),
        ({"projects": {"app": {}}}, ("projects", "app", "root")),
    ],
)
def test_a_binding_without_a_place_and_a_project_without_a_root_are_refused(
    gateway: dict[str, object], place: tuple[str | int, ...]
) -> None:
    with pytest.raises(ValidationError) as caught:
        LemonConfig.model_validate({"gateway": gateway})
    assert [error["loc"] for error in caught.value.errors()] == [("gateway", *place)]


async def test_without_an_override_the_bindings_project_says_where() -> None:
    found = resolver()
    assert await found.resolve_cwd(CHAT) == Path("/home/me/app")
    assert await found.resolve_cwd(TOPIC) == Path("/srv/site")
    for nowhere in (scope(2), scope(3), scope(9)):
        assert await found.resolve_cwd(nowhere) is None
    assert await found.lookup_project("app") == Project(id="app", root="~/app")
    assert await found.lookup_project("gone") is None


@pytest.mark.behaviour("lemon_core.5")
async def test_an_override_beats_the_binding_and_an_unknown_one_yields_nothing() -> None:
    with anyio.fail_after(5):
        async with open_store(StoreSettings("memory"), FakeClock()) as store:
            changes = ProjectBindingStore(store)
            found = resolver(changes)
            await changes.put_override("telegram", 1, None, "site")
            assert await found.resolve_cwd(CHAT) == Path("/srv/site")
            assert await found.resolve_cwd(scope(2)) is None
            await changes.put_override("telegram", 1, None, "nowhere")
            assert await found.resolve_cwd(CHAT) is None
            assert await found.resolve_cwd(TOPIC) == Path("/srv/site")
            await changes.put_project("nowhere", "~/made")
            await changes.put_project("app", "/moved")
            assert await found.resolve_cwd(CHAT) == Path("/home/me/made")
            assert await found.lookup_project("app") == Project(id="app", root="/moved")


class Broken(ProjectBindingStore):
    """A store whose every read fails."""

    def __init__(self) -> None:
        pass

    async def get_override(
        self, transport: str, chat_id: int | str, topic_id: int | str | None = None
    ) -> str | None:
        raise StoreUnavailable("gone")

    async def get_root(self, project_id: str) -> str | None:
        raise StoreUnavailable("gone")


async def test_a_store_that_fails_means_no_override() -> None:
    assert await resolver(Broken()).resolve_cwd(CHAT) == Path("/home/me/app")
