"""`lemon models` (specification lemon_ai 12)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import typer

from lemon_ai import Catalog
from lemon_ai.local_server import is_installed
from lemon_cli.models_command import app
from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.testing import temp_home


@pytest.fixture
def paths() -> Iterator[PathSettings]:
    with temp_home() as home:
        yield home


def run(paths: PathSettings, *arguments: str, environ: Mapping[str, str] | None = None) -> int:
    context = CommandContext(
        profile=Profile("test"),
        environ={"HOME": str(paths.home), **(environ or {})},
        paths=paths,
        cwd=paths.home,
    )
    command = typer.main.get_command(app)
    code = command.main(
        list(arguments), prog_name="lemon models", standalone_mode=False, obj=context
    )
    return code if isinstance(code, int) else 0


def document(
    capsys: pytest.CaptureFixture[str],
    paths: PathSettings,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    assert run(paths, *arguments, "--json", environ=environ) == 0
    printed = json.loads(capsys.readouterr().out)
    assert isinstance(printed, dict)
    return printed


def test_every_model_with_what_is_known_of_it(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = document(capsys, paths, environ={"XAI_API_KEY": "k"})
    catalog = Catalog()
    everything = [m for name in catalog.get_providers() for m in catalog.get_models(name)]
    assert printed["total"] == len(everything) == len(printed["models"])
    rows = {(row["provider"], row["id"]): row for row in printed["models"]}
    assert rows["xai", "grok-4.7"] == {
        "provider": "xai",
        "id": "grok-4.7",
        "name": "Grok 4.7",
        "context_window": 500_000,
        "max_tokens": 500_000,
        "input_usd_per_million": 2,
        "output_usd_per_million": 6,
        "vision": True,
        "thinking": True,
        "default": True,
        "has_credentials": True,
    }
    assert rows["kimi", "kimi-k3"]["input_usd_per_million"] is None
    ready = {row["provider"] for row in printed["models"] if row["has_credentials"]}
    assert ready == {"xai", *(["local"] if is_installed() else [])}


@pytest.mark.parametrize(
    ("environ", "provider"),
    [
        ({"HF_TOKEN": "k"}, "huggingface"),
        ({"GEMINI_API_KEY": "k"}, "google"),
        ({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}, "amazon_bedrock"),
        ({"GOOGLE_APPLICATION_CREDENTIALS": "/f.json"}, "google_vertex"),
        ({"AWS_ACCESS_KEY_ID": "k"}, None),
        ({"HF_TOKEN": " "}, None),
    ],
)
def test_what_opens_a_provider(
    environ: Mapping[str, str],
    provider: str | None,
    paths: PathSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = document(capsys, paths, environ=environ)["models"]
    ready = {row["provider"] for row in rows if row["has_credentials"]} - {"local"}
    assert ready == ({provider} if provider else set())


def test_filters_narrow_the_list(paths: PathSettings, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [row["id"] for row in document(capsys, paths, "--provider", "XAI")["models"]]
    assert ids == Catalog().get_model_ids("xai")
    printed = document(capsys, paths, "--vision", "--thinking", "--limit", "3")
    assert len(printed["models"]) == 3 < printed["total"]
    assert all(row["vision"] and row["thinking"] for row in printed["models"])
    none = document(capsys, paths, "--provider", "local", "--thinking")
    assert none == {"models": [], "total": 0}


def test_a_table_for_people(paths: PathSettings, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(paths, "--provider", "kimi", "--limit", "1") == 0
    said = capsys.readouterr()
    head, line = said.out.splitlines()
    assert " ".join(head.split()) == "model window in $/M out $/M vision thinking ready"
    assert line.split() == [
        "kimi:kimi-k2.6",
        "(default)",
        "262,144",
        "0.95",
        "4",
        "yes",
        "yes",
        "-",
    ]
    assert said.err == "lemon: 1 more models are left out by --limit\n"
    assert run(paths, "--provider", "ollama") == 0
    assert capsys.readouterr().err.startswith("lemon: no model fits")


def test_an_unknown_provider_is_a_wrong_argument(paths: PathSettings) -> None:
    with pytest.raises(typer.BadParameter, match="known: anthropic, openai"):
        run(paths, "--provider", "nobody")


def test_models_of_the_configuration_are_in_the_list(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    paths.state_dir.mkdir(parents=True, exist_ok=True)
    (paths.state_dir / "config.toml").write_text(
        '[providers.My-Box]\nbase_url = "http://box/v1"\nmodels = ["mine"]\n'
        '[providers.ollama]\nbase_url = "http://127.0.0.1:11434/v1"\nmodels = ["qwen3:8b"]\n'
    )
    rows = {row["provider"]: row for row in document(capsys, paths)["models"]}
    assert (rows["my_box"]["id"], rows["my_box"]["has_credentials"]) == ("mine", True)
    assert rows["my_box"]["input_usd_per_million"] is None
    assert (rows["ollama"]["id"], rows["ollama"]["input_usd_per_million"]) == ("qwen3:8b", 0)


def test_a_broken_configuration_is_no_reason_to_fail(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    paths.state_dir.mkdir(parents=True, exist_ok=True)
    (paths.state_dir / "config.toml").write_text("[providers\n")
    assert document(capsys, paths, "--provider", "openai")["total"] == len(
        Catalog().get_models("openai")
    )


def test_help_needs_neither_the_models_nor_their_library() -> None:
    code = (
        "import sys, lemon_cli.models_command;"
        "print(*(m for m in ('lemon_ai', 'aiohttp', 'pydantic') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
