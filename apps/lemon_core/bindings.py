"""Which agent, project and queue mode belong to a chat.

The configuration lists bindings and projects; people may add projects and override a chat's
project while Lemon runs, which `ProjectBindings` (core's store wrapper) keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lemon_core.config.gateway import GatewaySection
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger
from lemon_core.paths import PathSettings
from lemon_core.runs import DEFAULT_AGENT, QUEUE_MODES, QueueMode

log = get_logger("lemon_core.bindings")

ChatId = int | str


class ChatScope(BaseModel):
    """A place on a transport; a topic is a thread of its own inside a chat."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transport: str = Field(min_length=1)
    chat_id: ChatId
    topic_id: ChatId | None = None


class Binding(BaseModel):
    """What the operator wrote down for a chat, or for one topic of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transport: str
    chat_id: ChatId
    topic_id: ChatId | None = None
    project: str | None = None
    agent_id: str | None = None
    queue_mode: QueueMode | None = None

    @field_validator("queue_mode", mode="before")
    @classmethod
    def _known_mode(cls, value: object) -> object:
        # A binding must not be lost over a mode that this version does not know.
        return value if value in QUEUE_MODES else None


class Project(BaseModel):
    """A directory that chats may work in; `root` is as it was written, `~` included."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    root: str = Field(min_length=1)


class ProjectBindings(Protocol):
    """What was changed while Lemon runs: core's `ProjectBindingStore`; a read may raise
    `LemonError`."""

    async def get_override(
        self, transport: str, chat_id: ChatId, topic_id: ChatId | None = None
    ) -> str | None:
        """The project id that was chosen for exactly this chat, or topic of it."""

    async def get_root(self, project_id: str) -> str | None:
        """The root of a project that was added."""


class BindingResolver:
    """Answers from bindings (the first match in their order counts), projects and overrides."""

    def __init__(
        self,
        bindings: Iterable[Binding],
        projects: Iterable[Project],
        *,
        paths: PathSettings,
        changes: ProjectBindings | None = None,
    ) -> None:
        self._bindings = tuple(bindings)
        self._projects: Mapping[str, Project] = {project.id: project for project in projects}
        self._paths, self._changes = paths, changes

    @classmethod
    def of(
        cls, gateway: GatewaySection, *, paths: PathSettings, changes: ProjectBindings | None = None
    ) -> BindingResolver:
        """The resolver of `[[gateway.bindings]]` and `[gateway.projects]`."""
        bindings = [Binding.model_validate(row.model_dump()) for row in gateway.bindings]
        projects = [Project(id=name, root=row.root) for name, row in gateway.projects.items()]
        return cls(bindings, projects, paths=paths, changes=changes)

    def resolve_binding(self, scope: ChatScope) -> Binding | None:
        """The binding of the scope's topic, else that of its chat, else None."""
        place = (scope.transport, scope.chat_id)
        topics = [None] if scope.topic_id is None else [scope.topic_id, None]
        for topic in topics:
            for binding in self._bindings:
                if (binding.transport, binding.chat_id) == place and binding.topic_id == topic:
                    return binding
        return None

    def resolve_agent_id(self, scope: ChatScope) -> str:
        """The agent that answers in `scope`."""
        binding = self.resolve_binding(scope)
        return (binding and binding.agent_id) or DEFAULT_AGENT

    def resolve_queue_mode(self, scope: ChatScope) -> QueueMode | None:
        """The binding's queue mode; None leaves the choice to the caller."""
        binding = self.resolve_binding(scope)
        return None if binding is None else binding.queue_mode

    async def resolve_cwd(self, scope: ChatScope) -> Path | None:
        """The root of the scope's project.

        An override decides alone: one that names no known project yields None and not the
        binding's project, which somebody meant to leave.
        """
        project_id = await self._override(scope)
        if project_id is None:
            binding = self.resolve_binding(scope)
            project_id = None if binding is None else binding.project
        project = None if project_id is None else await self.lookup_project(project_id)
        return None if project is None else self._paths.expand(project.root)

    async def lookup_project(self, project_id: str) -> Project | None:
        """The project of that id: one that was added, else the configured one, else None."""
        added: str | None = None
        if self._changes is not None:
            try:
                added = await self._changes.get_root(project_id)
            except LemonError as exc:
                log.warning("bindings.project_unread", project=project_id, error=str(exc))
        if added is not None:
            return Project(id=project_id, root=added)
        return self._projects.get(project_id)

    async def _override(self, scope: ChatScope) -> str | None:
        if self._changes is None:
            return None
        try:
            return await self._changes.get_override(scope.transport, scope.chat_id, scope.topic_id)
        except LemonError as exc:
            # A chat goes on in its configured project rather than not at all.
            log.warning("bindings.override_unread", transport=scope.transport, error=str(exc))
            return None
