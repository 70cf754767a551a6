"""What the configuration says about this app (specification coding_agent 10)."""

from __future__ import annotations

from pathlib import Path

from coding_agent.settings import AgentSettings
from lemon_core.config import LemonConfig
from lemon_core.paths import PathSettings


def test_commands_run_without_keys(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "LEMON_SECRETS_MASTER_KEY": "key", "OPENAI_API_KEY": "k"}
    settings = AgentSettings.of(LemonConfig(), PathSettings(tmp_path), environ)
    assert settings.environ == {"PATH": "/bin"}
