"""What is shown of the providers (specification 10.5), and the command that prints it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer

from lemon_agent.cli import COMMANDS
from lemon_agent.cli.providers import app as providers_app
from lemon_agent.cli.workspace import app as workspace_app
from lemon_agent.runtime.status import ProviderStatus
from lemon_agent.tests.vault import vault
from lemon_agent.workspace.home import TEMPLATES
from lemon_core.commands import CommandContext
from lemon_core.config.model import Provider
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile, load_target

Captured = pytest.CaptureFixture[str]

CANARY = "canary"
ROWS = {
    "openai": Provider(api_key="sk-canary-1"),
    "groq": Provider(api_key_secret="secret-canary", base_url="https://canary.example/v1"),
    "box": Provider(base_url="http://canary.example/v1"),
}


def run(app: typer.Typer, *arguments: str, home: Path, **environ: str) -> int:
    context = CommandContext(
        profile=Profile("test"),
        environ={"HOME": str(home), "PATH": os.environ.get("PATH", ""), **environ},
        paths=PathSettings(home),
        cwd=home,
    )
    command = typer.main.get_command(app)
    code = command.main(list(arguments), prog_name="lemon", standalone_mode=False, obj=context)
    return code if isinstance(code, int) else 0


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_agent.18")
async def test_a_snapshot_has_booleans_and_counts_and_no_key() -> None:
    environ = {"MISTRAL_API_KEY": "sk-canary-2"}
    async with vault(ROWS, environ=environ, secrets={"llm_xai_api_key": "sk-canary-3"}) as v:
        shown: Any = await ProviderStatus(v.credentials, v.settings).snapshot()
    assert list(shown) == [
        "providers", "count", "readyCount", "defaultProvider", "defaultModel", "routing", "cleanup",
    ]  # fmt: skip
    assert [row["provider"] for row in shown["providers"]] == [
        "openai", "xai", "mistral", "groq", "box", "local",
    ]  # fmt: skip
    assert (shown["count"], shown["readyCount"]) == (6, 5)
    by_name = {row["provider"]: row for row in shown["providers"]}
    assert by_name["groq"] == {
        "provider": "groq",
        "configName": "groq",
        "known": True,
        "configured": True,
        "credentialReady": True,
        "config": {
            "apiKeyConfigured": False,
            "apiKeySecretConfigured": True,
            "oauthSecretConfigured": False,
            "baseUrlConfigured": True,
            "authSource": None,
        },
        "ambient": {"envConfigured": False},
    }
    assert by_name["mistral"]["ambient"] == {"envConfigured": True}
    text = json.dumps(shown)
    assert not [word for word in (CANARY, "_API_KEY", "llm_", "http") if word in text]


@pytest.mark.anyio
async def test_a_snapshot_may_be_narrowed_or_hold_the_whole_catalogue() -> None:
    async with vault(ROWS) as v:
        status = ProviderStatus(v.credentials, v.settings)
        one: Any = await status.snapshot({"provider": "Claude"})
        assert [row["provider"] for row in one["providers"]] == ["anthropic"]
        assert one["routing"]["requestedProvider"] == "openai"
        two: Any = await status.snapshot({"providers": ["groq", "nobody"]})
        assert [(r["provider"], r["known"]) for r in two["providers"]] == [
            ("groq", True),
            ("nobody", False),
        ]
        everyone: Any = await status.snapshot({"include_catalog": True})
        assert everyone["count"] > 20


def write(home: Path, text: str) -> None:
    (home / ".lemon").mkdir(exist_ok=True)
    (home / ".lemon" / "config.toml").write_text(text)


@pytest.mark.behaviour("lemon_agent.18")
def test_the_command_prints_no_key_no_name_of_one_and_no_url(
    tmp_path: Path, capsys: Captured
) -> None:
    write(
        tmp_path,
        '[providers.openai]\napi_key = "sk-canary-1"\n'
        '[providers.groq]\napi_key_secret = "canary_secret"\n'
        '[providers.box]\nbase_url = "http://canary.example/v1"\n'
        '[runtime.provider_routing]\nfallback_providers = ["box"]\n',
    )
    assert run(providers_app, home=tmp_path, MISTRAL_API_KEY="sk-canary-2") == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["PROVIDER", "READY", "CONFIGURED", "KEY", "FROM"]
    assert ["openai", "✓", "yes", "configuration"] in lines
    assert ["groq", "✗", "yes", "stored", "secret"] in lines
    assert ["mistral", "✓", "yes", "environment"] in lines
    assert ["box", "✓", "yes", "none", "needed"] in lines
    assert "Answers by default: openai." in text
    assert "Stand in, in this order: box." in text
    assert run(providers_app, "--json", "--provider", "openai", home=tmp_path) == 0
    document = capsys.readouterr().out
    assert [row["provider"] for row in json.loads(document)["providers"]] == ["openai"]
    assert not [w for w in (CANARY, "_API_KEY", "http") if w in text + document]


def test_the_command_reads_a_projects_file_too(tmp_path: Path, capsys: Captured) -> None:
    project = tmp_path / "work"
    (project / ".lemon").mkdir(parents=True)
    (project / ".lemon" / "config.toml").write_text('[defaults]\nmodel = "groq:m"\n')
    write(tmp_path, '[providers.groq]\napi_key = "k"\n[providers.openai]\napi_key = "k"\n')
    arguments = ("--json", "--project-dir", str(project))
    assert run(providers_app, *arguments, home=tmp_path) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["defaultModel"], shown["routing"]["selectedProvider"]) == ("groq:m", "groq")
    assert run(providers_app, "--include-catalog", home=tmp_path) == 0
    assert "anthropic" in capsys.readouterr().out


def test_workspace_init_writes_what_is_missing_and_nothing_else(
    tmp_path: Path, capsys: Captured
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "SOUL.md").write_text("mine")
    assert run(workspace_app, "init", "--workspace-dir", "home", home=tmp_path) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(TEMPLATES) - 1
    assert (folder / "SOUL.md").read_text() == "mine"
    assert run(workspace_app, "init", "--workspace-dir", "home", home=tmp_path) == 0
    assert "Nothing is missing" in capsys.readouterr().out
    assert run(workspace_app, "init", home=tmp_path) == 0
    assert (tmp_path / ".lemon" / "agent" / "workspace" / "AGENTS.md").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot be written"):
        run(workspace_app, "init", "--workspace-dir", "file", home=tmp_path)


def test_every_command_is_there() -> None:
    for spec in COMMANDS:
        assert isinstance(load_target(spec.target), typer.Typer)
