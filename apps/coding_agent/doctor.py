"""What `lemon doctor` says of extensions and WASM tools: which would be loaded, which not, and why.

Nothing is imported, compiled or run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.extensions.finding import (
    Candidate,
    ExtensionSettings,
    own_places,
    project_place,
    scan,
)
from coding_agent.wasm.manifests import Found, find_tools, wasm_folders
from lemon_core.config.trust import TrustedProjects
from lemon_core.doctor.context import DoctorCheck, DoctorContext
from lemon_core.doctor.report import Finding, passed, skipped, warned

SHOWN: Final = 5


async def extensions(context: DoctorContext) -> Finding:
    """Whether every extension that the configuration lets in can be loaded as far as is seen."""
    found = await anyio.to_thread.run_sync(_extensions, context)
    if not found:
        return skipped("there is no extension")
    faults = [f"{each.name}: {each.problem}" for each in found if each.problem is not None]
    if faults:
        return warned("\n".join(faults[:SHOWN]), "extensions_status tells more")
    waiting = [each for each in found if each.obstacle is not None]
    untrusted = [each for each in waiting if "lemon config trust" in (each.obstacle or "")]
    if untrusted:
        names = ", ".join(each.name for each in untrusted[:SHOWN])
        return warned(f"not loaded: {names}", untrusted[0].obstacle or "")
    used = [each.name for each in found if each.obstacle is None]
    told = f"to be loaded: {', '.join(used[:SHOWN]) or 'none'}"
    return passed(f"{told}; switched off: {len(waiting)}" if waiting else told)


async def wasm(context: DoctorContext) -> Finding:
    """Whether every WASM tool says clearly what it is and what it may do."""
    if not context.config.runtime.tools.wasm.enabled:
        return skipped("runtime.tools.wasm.enabled is off")
    found = await anyio.to_thread.run_sync(_wasm, context)
    if found.problems:
        faults = [f"{each['name']}: {each['error']}" for each in found.problems]
        return warned("\n".join(faults[:SHOWN]), "docs/wasm_tools.md says what a tool looks like")
    if found.not_loaded:
        return warned(_named(found.not_loaded), found.not_loaded[0]["reason"])
    if not found.tools:
        return skipped("there is no WASM tool")
    return passed(f"WASM tools: {', '.join(tool.name for tool in found.tools[:SHOWN])}")


def _named(rows: Sequence[dict[str, str]]) -> str:
    return f"not loaded: {', '.join(row['name'] for row in rows[:SHOWN])}"


def _extensions(context: DoctorContext) -> list[Candidate]:
    paths, project = context.paths, Path(os.path.realpath(context.project_dir))
    agent_dir = paths.agent_dir(context.environ)
    settings = ExtensionSettings.of(context.config, paths, project, agent_dir)
    is_trusted = TrustedProjects(paths).is_trusted
    place = project_place(settings, project, is_trusted)
    return scan([*own_places(settings, is_trusted), *([place] if place else [])])


def _wasm(context: DoctorContext) -> Found:
    paths, project = context.paths, Path(os.path.realpath(context.project_dir))
    folders = wasm_folders(
        context.config.runtime.tools.wasm,
        paths,
        paths.agent_dir(context.environ),
        project,
        project,
    )
    return find_tools(folders, TrustedProjects(paths).is_trusted, project, project)


CHECKS: Final[tuple[DoctorCheck, ...]] = (
    DoctorCheck("extensions.loading", extensions),
    DoctorCheck("wasm.tools", wasm),
)
