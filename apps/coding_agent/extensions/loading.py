"""Importing extensions, and checking what they offer: whatever is wrong is told and harms nobody.

Everything here runs in a thread of its own, because foreign code may take its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coding_agent.extensions.api import HookName, Provider
from coding_agent.extensions.checking import NAME, Checker, Hook, OfferedTool, Problem
from coding_agent.extensions.finding import Candidate, Source
from coding_agent.extensions.modules import imported, module_name, purge
from lemon_core.logs import get_logger

log = get_logger(__name__)

ATTRIBUTE: Final = "EXTENSION"


@dataclass(frozen=True, slots=True)
class LoadedExtension:
    """An extension that is in use. `value` is the extension's own object."""

    name: str
    version: str
    path: Path
    source: Source
    module: str
    value: object = field(repr=False)
    hooks: Mapping[HookName, Hook] = field(default_factory=dict, repr=False)
    capabilities: tuple[str, ...] = ()
    config_schema: Mapping[str, Any] | None = field(default=None, repr=False)
    providers: tuple[Provider, ...] = ()


def load(
    candidates: Sequence[Candidate], taken: Sequence[str] = ()
) -> tuple[list[LoadedExtension], list[Problem]]:
    """The extensions that can be loaded, by name, and everything that is wrong with them.

    Of two with one name the first of `taken` and `candidates` counts.
    """
    loaded: dict[str, LoadedExtension] = {}
    problems: list[Problem] = []
    for candidate in candidates:
        if candidate.obstacle is not None:
            continue
        extension, wrong = _load_one(candidate, {*taken, *loaded})
        problems += wrong
        if extension is not None:
            loaded[extension.name] = extension
    return sorted(loaded.values(), key=lambda extension: extension.name), problems


def unload(extensions: Sequence[LoadedExtension]) -> None:
    """Forget their modules, so that the next import reads the files again."""
    for extension in extensions:
        purge(extension.module)


def offered_tools(extension: LoadedExtension, cwd: str) -> tuple[list[OfferedTool], list[Problem]]:
    """The tools that it has for work in `cwd`."""
    checker = Checker(extension.name, str(extension.path))
    tools: dict[str, OfferedTool] = {}
    for item in checker.sequence(extension.value, "tools", cwd):
        offered = checker.tool(item)
        if offered is None:
            continue
        if offered.tool.name in tools:
            checker.fault("tools", f"two of its tools are called {offered.tool.name}")
        tools.setdefault(offered.tool.name, offered)
    return list(tools.values()), checker.problems


# -- one extension -------------------------------------------------------------------------------


def _load_one(
    candidate: Candidate, taken: set[str]
) -> tuple[LoadedExtension | None, list[Problem]]:
    def refused(message: str) -> tuple[None, list[Problem]]:
        log.warning("extensions.not_loaded", path=str(candidate.path), reason=message)
        return None, [Problem(candidate.name, str(candidate.path), "", message)]

    if candidate.problem is not None:
        return refused(candidate.problem)
    module = module_name(candidate.path)
    try:
        value = getattr(imported(module, candidate.path), ATTRIBUTE)
        name, version = value.name, value.version
    except (Exception, SystemExit) as exc:  # foreign code may raise anything
        purge(module)
        return refused(f"it cannot be imported: {type(exc).__name__}: {exc}")
    wrong = _identity_fault(candidate, name, version, taken)
    if wrong is not None:
        purge(module)
        return refused(wrong)
    checker = Checker(name, str(candidate.path))
    extension = LoadedExtension(
        name=name,
        version=version,
        path=candidate.path,
        source=candidate.place.source,
        module=module,
        value=value,
        hooks=checker.hooks(value),
        capabilities=checker.words(value),
        config_schema=checker.schema(value),
        providers=checker.providers(value),
    )
    for problem in checker.problems:
        log.warning("extensions.invalid", extension=name, callback=problem.callback)
    return extension, checker.problems


def _identity_fault(
    candidate: Candidate, name: object, version: object, taken: set[str]
) -> str | None:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        return f"its name {name!r} is not of small letters, digits, '.', '_' and '-'"
    if not isinstance(version, str) or not version.strip():
        return "it says no version"
    if candidate.manifest is not None and candidate.manifest.name != name:
        return f"its manifest calls it {candidate.manifest.name}, its code {name}"
    if name in taken:
        return f"another extension is called {name} already"
    return None
