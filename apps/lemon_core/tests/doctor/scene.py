"""A home, a project and a folder of programs for the doctor to look at."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from lemon_core.clock import SystemClock
from lemon_core.doctor import DailyQuota, DoctorContext, Finding, doctor_context
from lemon_core.doctor.checks import BUILT_IN
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.store import Store, StoreSettings, open_store


@dataclass(slots=True)
class Scene:
    """Everything lies below `root`; the environment holds nothing but what a test put there."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    profile: Profile | None = None
    quotas: tuple[DailyQuota, ...] = ()

    @property
    def paths(self) -> PathSettings:
        return PathSettings(self.root / "home")

    @property
    def project(self) -> Path:
        return self.root / "project"

    def write(self, files: Mapping[str, str]) -> Scene:
        """Put text into files, by path from the root on."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return self

    def program(self, name: str, output: str = "", *, code: int = 0) -> Scene:
        """A program of this name that prints `output` and ends with `code`."""
        path = self.root / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
        path.chmod(0o755)
        return self

    def context(self) -> DoctorContext:
        """What the doctor sees."""
        self.paths.home.mkdir(parents=True, exist_ok=True)
        self.project.mkdir(exist_ok=True)
        environ = {"PATH": str(self.root / "bin"), "HOME": str(self.paths.home), **self.environ}
        return doctor_context(
            self.project,
            paths=self.paths,
            environ=environ,
            clock=SystemClock(),
            profile=self.profile,
            quotas=self.quotas,
        )

    async def look(self, name: str) -> Finding:
        """What the built-in check called `name` finds."""
        check = next(check for check in BUILT_IN if check.name == name)
        return await check.look(self.context())

    def store(self) -> AbstractAsyncContextManager[Store]:
        """The store of this home, made and open for a block."""
        return open_store(StoreSettings("sqlite", self.paths.store_dir), SystemClock())
