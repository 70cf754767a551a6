"""What the configuration says about this app."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from coding_agent.tools.toolset import ShellSettings
from lemon_core.config.model import Compaction, LemonConfig, ThinkingLevel
from lemon_core.config.tools import Web
from lemon_core.known_secrets import KNOWN_SECRETS
from lemon_core.paths import PathSettings

MASTER_KEY_VARIABLE = "LEMON_SECRETS_MASTER_KEY"
STORE_URL_VARIABLE = "LEMON_STORE_URL"  # with a password in it
_SECRET_ENDINGS = ("_API_KEY", "_API_TOKEN", "_SECRET_KEY", "_ACCESS_TOKEN", "_AUTH_TOKEN")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`environ` is what commands run with; `home` is what `~` means to the tools.

    `instruction_dirs` are the user's own places for instructions to every project.
    """

    agent_dir: Path
    home: Path
    environ: Mapping[str, str]
    shell: ShellSettings
    thinking_level: ThinkingLevel
    state_dir: Path
    web: Web
    instruction_dirs: tuple[Path, ...]
    compaction: Compaction

    @classmethod
    def of(
        cls, config: LemonConfig, paths: PathSettings, environ: Mapping[str, str]
    ) -> AgentSettings:
        """The settings of a runtime."""
        shell = config.runtime.shell
        return cls(
            agent_dir=paths.agent_dir(environ),
            home=paths.home,
            environ=without_secrets(environ, shell.pass_env),
            shell=ShellSettings(
                path=None if shell.path is None else str(paths.expand(shell.path)),
                command_prefix=shell.command_prefix,
                timeout_ms=shell.timeout_ms,
            ),
            thinking_level=config.defaults.thinking_level,
            state_dir=paths.state_dir,
            web=config.runtime.tools.web,
            instruction_dirs=(paths.home / ".claude", paths.state_dir, paths.agent_dir(environ)),
            compaction=config.runtime.compaction,
        )


def without_secrets(environ: Mapping[str, str], passed: Collection[str] = ()) -> dict[str, str]:
    """What commands inherit: the keys of providers and services are no business of what a model
    runs, unless `passed`, patterns of names, says so; the key to all stored secrets never is."""

    def goes(name: str) -> bool:
        if name.upper() == MASTER_KEY_VARIABLE:
            return False
        return not _is_secret(name.upper()) or any(fnmatchcase(name, one) for one in passed)

    return {name: value for name, value in environ.items() if goes(name)}


def _is_secret(name: str) -> bool:
    if name in KNOWN_SECRETS or name == STORE_URL_VARIABLE or name.endswith(_SECRET_ENDINGS):
        return True
    return name.startswith("LEMON_") and name.endswith(("_TOKEN", "_SECRET", "_KEY", "_PASSWORD"))


def secret_values(environ: Mapping[str, str], config: LemonConfig) -> dict[str, str]:
    """The secrets that the environment and the configuration hold, by name."""
    found = {name: value for name, value in environ.items() if _is_secret(name.upper())}
    for name, row in config.providers.items():
        for key in ("api_key", "service_account_json"):
            value = getattr(row, key)
            if value and value not in found.values():
                found[f"providers.{name}.{key}"] = value
    return found
