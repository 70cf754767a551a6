"""What may be asked about extensions (the part of core's `AgentRuntime` that is about them)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coding_agent.extensions.finding import FOLDER
from coding_agent.extensions.report import ExtensionReport, errors_of, info
from coding_agent.foreign_tools import ForeignTools
from lemon_core.workspace import is_inside


class ExtensionQuestions:
    """Asking never gives code more than it has: what the configuration does not let in, and a
    project that is not trusted, is listed and not loaded."""

    def __init__(self, foreign: ForeignTools, report: ExtensionReport) -> None:
        self._foreign, self._report = foreign, report

    async def load_extensions(self, paths: Sequence[str]) -> dict[str, Any]:
        """The extensions at these paths, in so far as they may be loaded, and what is wrong.

        A path is an extension, a folder of them, or a project; without paths it is everything that
        every run sees.
        """
        wanted = [_real(path) for path in paths]
        projects = [path for path in wanted if (Path(path) / ".lemon" / FOLDER).is_dir()]
        home = _real(str(self._foreign.extensions.settings.project))
        found = [await self._at(cwd, wanted) for cwd in projects or [home]]
        return {key: _once([row for part in found for row in part[key]]) for key in found[0]}

    async def _at(self, cwd: str, wanted: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        host = self._foreign.extensions
        found = await host.of(cwd)
        load_errors, validation_errors = errors_of(
            [problem for problem in found.problems if _is_at(problem.path, wanted)]
        )
        return {
            "extensions": [
                info(each, found, details=False)
                for each in found.extensions
                if _is_at(str(each.path), wanted)
            ],
            "load_errors": load_errors,
            "validation_errors": validation_errors,
            "not_loaded": [
                each.listed()
                for each in await host.look(cwd)
                if each.obstacle is not None and _is_at(each.real, wanted)
            ],
        }

    async def extension_info(self, extensions: Sequence[object]) -> list[dict[str, Any]]:
        """All about these, by name or as `load_extensions` gave them."""
        names = _names(extensions)
        found = self._foreign.extensions.loaded()
        return [info(each, within, details=True) for each, within in found if each.name in names]

    async def extension_providers(self, extensions: Sequence[object]) -> dict[str, Any]:
        """Which of their providers count, and which do not."""
        return self._report.providers(_names(extensions))

    async def tool_conflicts(self, cwd: str, **options: Any) -> dict[str, Any]:
        """Who wins the names that several claim, with counts by source and what is wrong."""
        where = _real(cwd)
        report = await self._report.of(where)
        return {
            "conflicts": report["tool_conflicts"],
            "counts": await self._foreign.counts(where),
            "load_errors": report["load_errors"],
            "wasm": report["wasm"],
        }

    def wasm_sidecar_running(self) -> bool:
        """Whether a process for WASM tools is there."""
        return self._foreign.wasm.pool.is_running

    async def extension_dirs(self, cwd: str) -> list[str]:
        """The usual folders, the global one first."""
        agent = self._foreign.extensions.settings.agent_dir / FOLDER
        return [str(agent), str(Path(cwd) / ".lemon" / FOLDER)]


def _names(extensions: Sequence[object]) -> list[str]:
    names = [each.get("name") if isinstance(each, dict) else each for each in extensions]
    return [name for name in names if isinstance(name, str)]


def _real(path: str) -> str:
    return os.path.realpath(path)


def _is_at(path: str, wanted: Sequence[str]) -> bool:
    real = _real(path)
    return not wanted or any(is_inside(real, where) for where in wanted)


def _once(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({repr(row): row for row in rows}.values())
