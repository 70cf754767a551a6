"""A home and a project directory with configuration files, and the load under test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from lemon_core.config import ConfigError, LoadedConfig, load_config, load_validated
from lemon_core.config.contributed import NOTHING_CONTRIBUTED, Contributed
from lemon_core.config.trust import TrustedProjects
from lemon_core.paths import PathSettings


@dataclass(frozen=True, slots=True)
class Home:
    """Everything of a load that a test may set; `environ` holds nothing else."""

    root: Path

    @property
    def paths(self) -> PathSettings:
        return PathSettings(self.root / "home")

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def global_file(self) -> Path:
        return self.paths.config_file

    @property
    def project_file(self) -> Path:
        return self.project / ".lemon" / "config.toml"

    def write(self, text: str) -> None:
        """Make `text` the global file."""
        _write(self.global_file, text)

    def write_project(self, text: str) -> None:
        """Make `text` the project's file."""
        _write(self.project_file, text)

    def write_dotenv(self, text: str) -> None:
        """Make `text` the `.env` of the home."""
        _write(self.paths.state_dir / ".env", text)

    def trust(self) -> None:
        """Trust the project with its file as it is now."""
        TrustedProjects(self.paths).trust(self.project)

    def load(
        self,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
        profile_defaults: Mapping[str, object] | None = None,
        contributed: Contributed = NOTHING_CONTRIBUTED,
    ) -> LoadedConfig:
        """The validated load in the project."""
        return load_validated(
            self.project,
            paths=self.paths,
            environ=environ or {},
            overrides=overrides,
            profile_defaults=profile_defaults,
            contributed=contributed,
        )

    def load_plain(self, environ: Mapping[str, str] | None = None) -> LoadedConfig:
        """The plain load in the project."""
        return load_config(self.project, paths=self.paths, environ=environ or {})

    def errors(self) -> list[str]:
        """What the validated load refuses."""
        with pytest.raises(ConfigError) as caught:
            self.load()
        assert str(caught.value) == "\n".join(caught.value.errors)
        return list(caught.value.errors)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
