"""What the configuration says about this app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coding_agent.tools.toolset import ShellSettings
from lemon_core.config.model import LemonConfig, ThinkingLevel
from lemon_core.paths import PathSettings

MASTER_KEY_VARIABLE = "LEMON_SECRETS_MASTER_KEY"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`environ` is what commands run with; `home` is what `~` means to the tools."""

    agent_dir: Path
    home: Path
    environ: Mapping[str, str]
    shell: ShellSettings
    thinking_level: ThinkingLevel

    @classmethod
    def of(
        cls, config: LemonConfig, paths: PathSettings, environ: Mapping[str, str]
    ) -> AgentSettings:
        """The settings of a runtime."""
        shell = config.runtime.shell
        return cls(
            agent_dir=paths.agent_dir(environ),
            home=paths.home,
            # The key to all stored secrets is no business of what a model runs.
            environ={k: v for k, v in environ.items() if k != MASTER_KEY_VARIABLE},
            shell=ShellSettings(
                path=None if shell.path is None else str(paths.expand(shell.path)),
                command_prefix=shell.command_prefix,
                timeout_ms=shell.timeout_ms,
            ),
            thinking_level=config.defaults.thinking_level,
        )
