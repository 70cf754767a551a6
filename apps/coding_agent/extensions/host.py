"""The extensions of a runtime: loaded when a run first needs them, kept, reloaded on request.

Those of the configuration and of the agent's folder are for every run; a project's are for runs in
its directory alone. Where no place may be loaded a run asks one property and pays nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from coding_agent.extensions.api import HOOKS, HookName
from coding_agent.extensions.checking import Hook, OfferedTool, Problem
from coding_agent.extensions.finding import (
    Candidate,
    ExtensionSettings,
    Place,
    own_places,
    project_place,
    scan,
)
from coding_agent.extensions.hooks import Hooks
from coding_agent.extensions.loading import LoadedExtension, load, offered_tools, unload
from coding_agent.extensions.registration import ProviderRegistration
from coding_agent.extensions.threads import in_own_thread
from lemon_core.clock import Clock, within
from lemon_core.logs import get_logger

log = get_logger(__name__)

LOAD_TIMEOUT_MS: Final = 15_000
MAX_DIRECTORIES: Final = 64

IsTrusted = Callable[[Path], bool]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What one group of places gave; `place` is the project's, for a project."""

    extensions: tuple[LoadedExtension, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[Problem, ...] = ()
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class ExtensionSet:
    """What the runs of a directory have: `tools` by name, each name once; `shadowed` are the
    extensions whose tool of that name does not count."""

    extensions: tuple[LoadedExtension, ...] = ()
    tools: tuple[OfferedTool, ...] = ()
    shadowed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[Problem, ...] = ()
    loaded_at_ms: int | None = None


NO_EXTENSIONS: Final = ExtensionSet()


class Extensions:
    """One per runtime. `read` gives the settings as they are now, the same object while they are
    unchanged."""

    def __init__(
        self,
        read: Callable[[], ExtensionSettings],
        is_trusted: IsTrusted,
        registration: ProviderRegistration,
        clock: Clock,
    ) -> None:
        self._read, self._is_trusted, self._clock = read, is_trusted, clock
        self.registration = registration
        self._lock = anyio.Lock(fast_acquire=True)
        self._seen: ExtensionSettings | None = None
        self._own: _Loaded | None = None
        self._projects: dict[str, _Loaded] = {}
        self._sets: OrderedDict[str, ExtensionSet] = OrderedDict()

    @property
    def settings(self) -> ExtensionSettings:
        """What the configuration says now."""
        return self._read()

    async def of(self, cwd: str) -> ExtensionSet:
        """What runs in `cwd` (a real path) have; loads what is not loaded yet."""
        settings = self._read()
        if not settings.loads_any and self._own is None:
            return NO_EXTENSIONS
        async with self._lock:
            if settings is not self._seen:
                self._forget()
                self._seen = settings
            if not settings.loads_any:
                return NO_EXTENSIONS
            if not self._is_current(cwd, settings):
                self._drop_project(cwd)
            found = self._sets.get(cwd)
            if found is None:
                found = await self._made(cwd, settings)
                self._sets[cwd] = found
                while len(self._sets) > MAX_DIRECTORIES:
                    self._drop_project(next(iter(self._sets)))
            else:
                self._sets.move_to_end(cwd)
            return found

    async def reload(self, cwd: str) -> ExtensionSet:
        """Take back, forget and read everything again; runs that live keep what they have."""
        async with self._lock:
            self._forget()
        return await self.of(cwd)

    async def look(self, cwd: str) -> list[Candidate]:
        """Every extension that lies somewhere, loaded or not; nothing is imported."""
        settings = self._read()

        def seen() -> list[Candidate]:
            places = own_places(settings, self._is_trusted)
            project = project_place(settings, Path(cwd), self._is_trusted)
            return scan([*places, *([project] if project else [])])

        return await anyio.to_thread.run_sync(seen)

    def loaded(self) -> list[tuple[LoadedExtension, ExtensionSet]]:
        """Every extension that is in use, with a set that it is part of."""
        found: dict[str, tuple[LoadedExtension, ExtensionSet]] = {}
        for each in self._sets.values():
            for extension in each.extensions:
                found.setdefault(extension.name, (extension, each))
        return list(found.values())

    def close(self) -> None:
        """Give back what was registered elsewhere."""
        self._forget()

    # -- inside ------------------------------------------------------------------------------

    def _is_current(self, cwd: str, settings: ExtensionSettings) -> bool:
        """Whether the project's folder and its trust are as they were."""
        known = self._projects.get(cwd)
        return known is None or known.place == self._place(cwd, settings)

    def _place(self, cwd: str, settings: ExtensionSettings) -> Place | None:
        return project_place(settings, Path(cwd), self._is_trusted)

    def _forget(self) -> None:
        for loaded in (self._own, *self._projects.values()):
            if loaded is not None:
                self.registration.withdraw(loaded.extensions)
                unload(loaded.extensions)
        self._own = None
        self._projects.clear()
        self._sets.clear()

    def _drop_project(self, cwd: str) -> None:
        loaded = self._projects.pop(cwd, None)
        self._sets.pop(cwd, None)
        if loaded is not None:
            self.registration.withdraw(loaded.extensions)
            unload(loaded.extensions)

    async def _made(self, cwd: str, settings: ExtensionSettings) -> ExtensionSet:
        if self._own is None:
            self._own = await self._loaded(
                lambda: scan(own_places(settings, self._is_trusted)), (), frozenset()
            )
        own = self._own
        place = self._place(cwd, settings)
        taken = [extension.name for extension in own.extensions]
        known = {candidate.real for candidate in own.candidates}
        project = await self._loaded(lambda: scan([place] if place else []), taken, known)
        self._projects[cwd] = project = replace(project, place=place)
        extensions = tuple(
            sorted((*own.extensions, *project.extensions), key=lambda extension: extension.name)
        )
        tools, shadowed, problems = await self._tools(extensions, cwd)
        return ExtensionSet(
            extensions=extensions,
            tools=tools,
            shadowed=shadowed,
            hooks=_hooks_of(extensions),
            candidates=(*own.candidates, *project.candidates),
            problems=(*own.problems, *project.problems, *problems),
            loaded_at_ms=self._clock.now_ms(),
        )

    async def _loaded(
        self, find: Callable[[], list[Candidate]], taken: Sequence[str], known: Collection[str]
    ) -> _Loaded:
        """What is found and is not `known` by its real path; `taken` are names that are given."""
        found = await anyio.to_thread.run_sync(find)
        candidates = [each for each in found if each.real not in known]
        extensions: list[LoadedExtension] = []
        problems: list[Problem] = []
        # One at a time: what hangs costs itself alone.
        for candidate in candidates:
            names = [*taken, *(extension.name for extension in extensions)]
            loaded, wrong = await self._in_time(candidate, partial(load, [candidate], names))
            extensions += loaded
            problems += wrong
        self.registration.register(extensions)
        return _Loaded(tuple(extensions), tuple(candidates), tuple(problems))

    async def _in_time(
        self,
        candidate: Candidate,
        work: Callable[[], tuple[list[LoadedExtension], list[Problem]]],
    ) -> tuple[list[LoadedExtension], list[Problem]]:
        try:
            return await self._in_thread(work)
        except TimeoutError:
            message = f"it took longer than {LOAD_TIMEOUT_MS} ms to load"
            return [], [Problem(candidate.name, str(candidate.path), "", message)]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await within(self._clock, LOAD_TIMEOUT_MS, lambda: in_own_thread(work))

    async def _tools(
        self, extensions: Sequence[LoadedExtension], cwd: str
    ) -> tuple[tuple[OfferedTool, ...], dict[str, tuple[str, ...]], list[Problem]]:
        tools: dict[str, OfferedTool] = {}
        shadowed: dict[str, tuple[str, ...]] = {}
        problems: list[Problem] = []
        for extension in extensions:
            try:
                offered, wrong = await self._in_thread(partial(offered_tools, extension, cwd))
            except TimeoutError:
                message = f"took longer than {LOAD_TIMEOUT_MS} ms"
                problems.append(Problem(extension.name, str(extension.path), "tools", message))
                continue
            problems += wrong
            for each in offered:
                if tools.setdefault(each.tool.name, each) is not each:
                    shadowed[each.tool.name] = (*shadowed.get(each.tool.name, ()), extension.name)
        return tuple(tools[name] for name in sorted(tools)), shadowed, problems


def _hooks_of(extensions: Sequence[LoadedExtension]) -> dict[HookName, list[tuple[str, Hook]]]:
    found = {
        name: [(each.name, each.hooks[name]) for each in extensions if name in each.hooks]
        for name in HOOKS
    }
    return {name: hooks for name, hooks in found.items() if hooks}
