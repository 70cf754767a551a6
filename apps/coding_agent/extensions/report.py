"""What there is to tell about extensions: which are in use, which are not, and who won a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from coding_agent.extensions.checking import Problem
from coding_agent.extensions.host import ExtensionSet
from coding_agent.extensions.loading import LoadedExtension
from coding_agent.foreign_tools import ForeignTools

Facts = Callable[[], Mapping[str, object]]


class ExtensionReport:
    """`parts` are the facts of neighbours that belong into the report, by their names in it."""

    def __init__(self, foreign: ForeignTools, parts: Mapping[str, Facts]) -> None:
        self._foreign, self._parts = foreign, dict(parts)

    async def of(self, cwd: str, *, details: bool = False) -> dict[str, Any]:
        """The report for work in `cwd`; loads what a run there would load."""
        host = self._foreign.extensions
        found = await host.of(cwd)
        seen = await host.look(cwd)
        conflicts = await self._foreign.conflicts(cwd)
        loaded = [info(each, found, details=details) for each in found.extensions]
        load_errors, validation_errors = errors_of(found.problems)
        not_loaded = [each.listed() for each in seen if each.obstacle is not None]
        wasm = await self._foreign.wasm.find(cwd)
        not_loaded += [dict(row) for row in wasm.not_loaded]
        load_errors += wasm.problems
        settings = host.settings
        return {
            "enabled": settings.enabled,
            "auto_load_default_paths": settings.auto_load,
            "extensions": loaded,
            "not_loaded": not_loaded,
            "load_errors": load_errors,
            "validation_errors": validation_errors,
            "tool_conflicts": [each.listed() for each in conflicts],
            "provider_registration": self.providers([each.name for each in found.extensions]),
            **{name: dict(facts()) for name, facts in self._parts.items()},
            "totals": {
                "extensions": len(loaded),
                "tools": len(found.tools),
                "not_loaded": len(not_loaded),
                "load_errors": len(load_errors),
                "validation_errors": len(validation_errors),
                "tool_conflicts": len(conflicts),
            },
            "loaded_at_ms": found.loaded_at_ms,
        }

    def providers(self, extensions: Sequence[str]) -> dict[str, Any]:
        """Which providers of these extensions count, and which do not."""
        registered, conflicts = self._foreign.extensions.registration.of(extensions)
        return {
            "registered": [asdict(row) for row in registered],
            "conflicts": [asdict(row) for row in conflicts],
        }


def info(extension: LoadedExtension, found: ExtensionSet, *, details: bool) -> dict[str, Any]:
    """What is told of an extension that is in use."""
    told: dict[str, Any] = {
        "name": extension.name,
        "version": extension.version,
        "source": extension.source,
        "path": str(extension.path),
        "tools": [each.tool.name for each in found.tools if each.extension == extension.name],
        "hooks": list(extension.hooks),
        "capabilities": list(extension.capabilities),
        "providers": [{"type": each.type, "name": each.name} for each in extension.providers],
    }
    if details:
        told["config_schema"] = extension.config_schema
        told["tool_details"] = [
            {
                "name": each.tool.name,
                "description": each.tool.description,
                "classes": sorted(each.classes) if each.classes is not None else None,
            }
            for each in found.tools
            if each.extension == extension.name
        ]
    return told


def errors_of(
    problems: Sequence[Problem],
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """What kept extensions from loading, and what of loaded ones is wrong."""
    load_errors = [
        {"name": each.extension, "path": each.path, "error": each.message}
        for each in problems
        if not each.callback
    ]
    validation_errors = [
        {"extension": each.extension, "callback": each.callback, "error": each.message}
        for each in problems
        if each.callback
    ]
    return load_errors, validation_errors


def as_lines(report: Mapping[str, Any]) -> list[str]:
    """The report as a model and a person read it."""
    lines: list[str] = []
    for each in report["extensions"]:
        tools = ", ".join(each["tools"]) or "no tools"
        lines.append(f"{each['name']} {each['version']} ({each['source']}): {tools}")
    for each in report["not_loaded"]:
        lines.append(f"{each['name']} is not loaded: {each['reason']}")
    for each in report["load_errors"]:
        lines.append(f"{each['name']} cannot be loaded: {each['error']}")
    for each in report["validation_errors"]:
        lines.append(f"{each['extension']}, {each['callback']}: {each['error']}")
    for each in report["tool_conflicts"]:
        lines.append(
            f"tool {each['tool_name']}: {each['winner']} wins over {', '.join(each['shadowed'])}"
        )
    for each in report["provider_registration"]["conflicts"]:
        lines.append(
            f"{each['type']} provider {each['name']} of {each['extension']}: "
            f"{each['winner']} wins over it"
        )
    return lines or ["There are no extensions."]
