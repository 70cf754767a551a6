"""Projects of chats: overrides that a command made, and projects that were made at run time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, TypeVar

from lemon_core.logs import get_logger
from lemon_core.store.codec import Key
from lemon_core.store.core import Store
from lemon_core.store.errors import StoreError
from lemon_core.store.rows import parse_row

OVERRIDES: Final = "project_overrides"
PROJECTS: Final = "projects_dynamic"

ChatId = str | int
"""A chat or topic as its platform numbers or names it; 5 and "5" are two."""

T = TypeVar("T")

log = get_logger("lemon_core.store")


@dataclass(frozen=True, slots=True)
class _Override:
    project_id: str


@dataclass(frozen=True, slots=True)
class _Project:
    root: str


class ProjectBindingStore:
    """Overrides by chat (`transport, chat_id, topic_id`), and the roots of projects by id.

    A read that fails is logged and answers as if nothing were stored: messages must not stop for
    it. Writes raise `StoreError`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get_override(
        self, transport: str, chat_id: ChatId, topic_id: ChatId | None = None
    ) -> str | None:
        """The id of the project that exactly this chat, or topic of it, was bound to."""
        row = await self._read(OVERRIDES, _scope_key(transport, chat_id, topic_id), _Override)
        return None if row is None else row.project_id

    async def put_override(
        self, transport: str, chat_id: ChatId, topic_id: ChatId | None, project_id: str
    ) -> None:
        """Bind the chat, or the topic of it, to a project."""
        key = _scope_key(transport, chat_id, topic_id)
        await self._store.put(OVERRIDES, key, asdict(_Override(project_id)))

    async def delete_override(
        self, transport: str, chat_id: ChatId, topic_id: ChatId | None = None
    ) -> None:
        """Let the configuration decide again; harmless without an override."""
        await self._store.delete(OVERRIDES, _scope_key(transport, chat_id, topic_id))

    async def get_root(self, project_id: str) -> str | None:
        """The root folder of a project that was made at run time, as it was given."""
        row = await self._read(PROJECTS, project_id, _Project)
        return None if row is None else row.root

    async def put_project(self, project_id: str, root: str) -> None:
        """Make a project, or move it to another root."""
        await self._store.put(PROJECTS, project_id, asdict(_Project(root)))

    async def delete_project(self, project_id: str) -> None:
        """Forget a project that was made at run time."""
        await self._store.delete(PROJECTS, project_id)

    async def list_projects(self) -> dict[str, str]:
        """Roots of the projects that were made at run time, by id; damaged rows are left out."""
        try:
            rows = await self._store.load_all(PROJECTS)
        except StoreError as exc:
            log.warning("store.read_failed", table=PROJECTS, error=str(exc))
            return {}
        found = {str(key): _parsed(PROJECTS, key, value, _Project) for key, value in rows}
        return {name: project.root for name, project in found.items() if project is not None}

    async def _read(self, table: str, key: Key, cls: type[T]) -> T | None:
        try:
            value = await self._store.load(table, key)
        except StoreError as exc:
            log.warning("store.read_failed", table=table, key=key, error=str(exc))
            return None
        return None if value is None else _parsed(table, key, value, cls)


def _parsed(table: str, key: Key, value: object, cls: type[T]) -> T | None:
    try:
        return parse_row(cls, value, f"row {key!r} of {table}")
    except StoreError as exc:
        log.warning("store.read_failed", table=table, key=key, error=str(exc))
        return None


def _scope_key(transport: str, chat_id: ChatId, topic_id: ChatId | None) -> Key:
    return (transport, chat_id) if topic_id is None else (transport, chat_id, topic_id)
