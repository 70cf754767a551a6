"""What the configuration says about this app (specification coding_agent 10)."""

from __future__ import annotations

from pathlib import Path

from coding_agent.settings import AgentSettings
from lemon_core.config import LemonConfig
from lemon_core.config.model import RuntimeSection, Shell
from lemon_core.paths import PathSettings


def test_commands_run_without_keys(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "LEMON_SECRETS_MASTER_KEY": "key", "OPENAI_API_KEY": "k"}
    settings = AgentSettings.of(LemonConfig(), PathSettings(tmp_path), environ)
    assert settings.environ == {"PATH": "/bin"}


def test_keys_that_the_configuration_names_reach_commands(tmp_path: Path) -> None:
    """By their names or a part of them; the key to all stored secrets never does."""
    environ = {
        "PATH": "/bin",
        "LEMON_SECRETS_MASTER_KEY": "key",
        "OPENAI_API_KEY": "k",
        "GITHUB_TOKEN": "t",
        "AWS_SECRET_ACCESS_KEY": "a",
        "AWS_SESSION_TOKEN": "b",
    }

    def inherited(*pass_env: str) -> set[str]:
        config = LemonConfig(runtime=RuntimeSection(shell=Shell(pass_env=pass_env)))
        return set(AgentSettings.of(config, PathSettings(tmp_path), environ).environ)

    assert inherited() == {"PATH"}
    assert inherited("GITHUB_TOKEN", "AWS_*") == {
        "PATH",
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
    }
    assert inherited("*") == set(environ) - {"LEMON_SECRETS_MASTER_KEY"}


def test_the_password_of_the_store_is_no_business_of_commands(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "LEMON_STORE_URL": "postgresql://lemon:secret@db/lemon"}
    settings = AgentSettings.of(LemonConfig(), PathSettings(tmp_path), environ)
    assert settings.environ == {"PATH": "/bin"}
