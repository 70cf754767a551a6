"""`lemon` in a home of its own, in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from lemon_agent.cli import COMMANDS as AGENT_COMMANDS
from lemon_cli.cli import COMMANDS
from lemon_cli.main import run
from lemon_core.cli import COMMANDS as CORE_COMMANDS
from lemon_core.cli.base import open_core
from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile

PROFILE = Profile(
    name="test",
    commands={
        "lemon_cli": COMMANDS,
        "lemon_agent": AGENT_COMMANDS,
        "lemon_core": CORE_COMMANDS,
    },
)


@dataclass(slots=True)
class Home:
    """A home directory, and an environment without a credential."""

    paths: PathSettings
    extra: Mapping[str, str] = field(default_factory=dict)
    profile: Profile = PROFILE

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.paths.home), "PATH": os.environ["PATH"], **self.extra}

    @property
    def context(self) -> CommandContext:
        return CommandContext(self.profile, self.environ, self.paths, self.paths.home)

    @property
    def config(self) -> str:
        return self.paths.config_file.read_text()

    def write_config(self, text: str) -> None:
        self.paths.state_dir.mkdir(mode=0o700, exist_ok=True)
        self.paths.config_file.write_text(text)

    def lemon(self, *argv: str) -> int:
        return run(argv, profile=self.profile, environ=self.environ, cwd=self.paths.home)

    def store_secret(self, name: str, value: str) -> None:
        async def store() -> None:
            async with open_core(self.context) as core:
                await core.secrets.set(name, value)

        anyio.run(store)

    def secret(self, name: str) -> str:
        async def read() -> str:
            async with open_core(self.context) as core:
                return await core.secrets.get(name)

        return anyio.run(read)

    def files(self) -> dict[Path, bytes]:
        """Every file but the database's own bookkeeping, with its content."""
        return {
            path.relative_to(self.paths.home): path.read_bytes()
            for path in sorted(self.paths.home.rglob("*"))
            if path.is_file() and "store" not in path.parts
        }
