"""`lemon config` (specification lemon_core 10.1 and 17, lemon_cli 2.1)."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
import typer

from lemon_core.cli.config import app
from lemon_core.cli.config_view import UnknownKey
from lemon_core.cli.doctor import app as doctor
from lemon_core.config.load import ConfigError
from lemon_core.config.trust import TrustError
from lemon_core.config.write import ConfigWriteError
from lemon_core.tests.cli.commands import run_command

Captured = pytest.CaptureFixture[str]

BROKEN = ["[gateway\n", "[gateway]\nmax_concurrent_runs = 0\n", "engine = 'x'\n"]


def run(home: Path, *arguments: str, **environ: str) -> int:
    """`lemon config` with these arguments in the project of `home`."""
    project = home / "project"
    project.mkdir(exist_ok=True)
    given = {"HOME": str(home), **environ}
    return run_command(app, *arguments, home=home, cwd=project, environ=given)


def config_file(home: Path, text: str | None = None, *, project: bool = False) -> Path:
    """The global file, or that of the project, with `text` written to it."""
    path = home / ("project/.lemon" if project else ".lemon") / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is not None:
        path.write_text(dedent(text))
    return path


# -- validate --------------------------------------------------------------------------------


def test_a_valid_configuration_gets_a_tick(tmp_path: Path, capsys: Captured) -> None:
    assert run(tmp_path, "validate") == 0
    assert capsys.readouterr().out == "✓ The configuration is valid.\n"


@pytest.mark.behaviour("lemon_core.48")
def test_every_fault_is_named_with_its_place(tmp_path: Path, capsys: Captured) -> None:
    at = config_file(
        tmp_path,
        """\
        [gateway]
        max_concurrent_runs = 0
        health_port = -1
        [kitchen]
        """,
    )
    config_file(tmp_path, "[\n", project=True)
    assert run(tmp_path, "validate", "-v") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"  {at}"
    assert f"! {at}:4: kitchen: unknown section, ignored" in lines
    assert [line for line in lines if line.startswith("✗")] == [
        f"✗ {at}:2: gateway.max_concurrent_runs: must be at least 1, not 0",
        f"✗ {at}:3: gateway.health_port: must be at least 0, not -1",
        f"✗ {tmp_path}/project/.lemon/config.toml:1: malformed TOML: Invalid initial character "
        "for a key part",
    ]


def test_validation_is_one_document_for_programs(tmp_path: Path, capsys: Captured) -> None:
    at = config_file(tmp_path, "[gateway]\nhealth_port = -1\n")
    assert run(tmp_path, "validate", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["valid"] is False
    assert document["errors"] == [f"{at}:2: gateway.health_port: must be at least 0, not -1"]
    assert document["files"][0] == {"path": str(at), "present": True}


@pytest.mark.behaviour("lemon_core.48")
@pytest.mark.parametrize("text", BROKEN)
def test_every_look_works_on_a_broken_file(tmp_path: Path, capsys: Captured, text: str) -> None:
    at = config_file(tmp_path, text)
    assert run(tmp_path, "validate") == 1
    assert f"✗ {at}:" in capsys.readouterr().out
    assert run(tmp_path, "show") == 0
    shown = capsys.readouterr()
    assert "defaults.thinking_level" in shown.out
    assert f"{at}:" in shown.err
    assert run(tmp_path, "show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["errors"]
    assert run(tmp_path, "get", "defaults.thinking_level") == 0
    assert capsys.readouterr().out == "medium\n"


@pytest.mark.behaviour("lemon_core.48")
def test_an_unknown_key_only_warns(tmp_path: Path, capsys: Captured) -> None:
    at = config_file(tmp_path, "[kitchen]\noven = 1\n")
    assert run(tmp_path, "validate") == 0
    assert f"! {at}:1: kitchen: unknown section, ignored" in capsys.readouterr().out


# -- show and get ----------------------------------------------------------------------------


def test_what_is_in_force_is_shown_with_its_source_and_no_key(
    tmp_path: Path, capsys: Captured
) -> None:
    config_file(
        tmp_path,
        """\
        [defaults]
        model = "mine"
        [providers.openai]
        api_key = "sk-hidden"
        api_key_secret = "A_NAME"
        """,
    )
    config_file(tmp_path, "[defaults]\nmodel = 'theirs'\n", project=True)
    environ = {"GROQ_API_KEY": "gsk-hidden", "LEMON_THEME": "dark"}
    assert run(tmp_path, "show", **environ) == 0
    out = capsys.readouterr().out
    rows = {" ".join(line.split()) for line in out.splitlines()}
    assert {
        "defaults.model theirs project (hides file)",
        "defaults.thinking_level medium default",
        "runtime.theme dark environment",
        "providers.openai.api_key ✓ file",
        "providers.openai.api_key_secret ✓ file",
        "providers.groq.api_key ✓ environment",
        "gateway.max_concurrent_runs 2 default",
    } <= rows
    assert {"Agent", "Providers", "Gateway", "Logging", "TUI"} <= rows
    assert "runtime.retry.max_retries" not in out
    assert run(tmp_path, "show", "-v", **environ) == 0
    everything = capsys.readouterr().out
    assert "runtime.retry.max_retries" in everything
    assert "providers.openai.oauth_secret" in everything
    assert run(tmp_path, "show", "--json", **environ) == 0
    document = capsys.readouterr().out
    assert json.loads(document)["settings"]["providers.groq.api_key"] == {
        "set": True,
        "layer": "environment",
    }
    for text in (out, everything, document):
        assert "hidden" not in text
        assert "A_NAME" not in text


def test_one_value_or_a_section_is_printed(tmp_path: Path, capsys: Captured) -> None:
    config_file(tmp_path, "[defaults]\nmodel = 'mine'\n[providers.openai]\napi_key = 'hidden'\n")
    assert run(tmp_path, "get", "defaults.model") == 0
    assert run(tmp_path, "get", "gateway.queue") == 0
    assert run(tmp_path, "get", "providers.openai.api_key") == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine",
        "gateway.queue.mode = null",
        "gateway.queue.cap = null",
        "gateway.queue.drop = null",
        "[REDACTED]",
    ]
    assert run(tmp_path, "get", "defaults.model", "--json", LEMON_DEFAULT_MODEL="other") == 0
    assert json.loads(capsys.readouterr().out) == {
        "defaults.model": {
            "value": "other",
            "layer": "environment",
            "shadowed": [{"layer": "global", "value": "mine"}],
        }
    }
    with pytest.raises(UnknownKey, match=r"did you mean defaults\.model\?"):
        run(tmp_path, "get", "default.model")


# -- set and unset ---------------------------------------------------------------------------


def test_values_are_read_as_their_keys_take_them(tmp_path: Path, capsys: Captured) -> None:
    pairs = ["gateway.max_concurrent_runs", "3", "runtime.pinned_version", "1.2"]
    pairs += ["defaults.model", "openai:x", "runtime.extension_paths", '["a"]', "tui.debug", "true"]
    assert run(tmp_path, "set", *pairs) == 0
    path = config_file(tmp_path)
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"gateway.max_concurrent_runs = 3  ({path})",
        f'runtime.pinned_version = "1.2"  ({path})',
    ]
    assert path.read_text() == dedent(
        """\
        [gateway]
        max_concurrent_runs = 3

        [runtime]
        pinned_version = "1.2"
        extension_paths = ["a"]

        [defaults]
        model = "openai:x"

        [tui]
        debug = true
        """
    )


@pytest.mark.behaviour("lemon_core.105", "lemon_core.33")
def test_setting_a_key_leaves_a_reference_to_a_secret_as_it_is(tmp_path: Path) -> None:
    text = (
        "# mine\n[providers.openai]\napi_key_secret = 'OPENAI'  # a name\n"
        'base_url = "https://${HOST}/v1"\n'
    )
    path = config_file(tmp_path, text)
    assert run(tmp_path, "set", "defaults.model", "x", "providers.openai.region", "eu") == 0
    assert path.read_text() == f'{text}region = "eu"\n\n[defaults]\nmodel = "x"\n'
    assert run(tmp_path, "unset", "defaults.model", "providers.openai.region") == 0
    assert path.read_text() == f"{text}\n[defaults]\n"
    assert [file.name for file in path.parent.iterdir()] == ["config.toml"]


@pytest.mark.behaviour("lemon_core.105", "lemon_core.48")
@pytest.mark.parametrize("text", ["[providers.openai]\napi_key_secret = 'OPENAI'\n", *BROKEN])
def test_the_doctor_looks_at_any_file_and_changes_none(
    tmp_path: Path, capsys: Captured, text: str
) -> None:
    path = config_file(tmp_path, text)
    environ = {"HOME": str(tmp_path)}
    code = run_command(doctor, "--json", home=tmp_path, cwd=tmp_path, environ=environ)
    assert json.loads(capsys.readouterr().out)["overall"] == ("fail" if code else "warn")
    assert path.read_text() == text
    assert [file.name for file in path.parent.glob("config*")] == ["config.toml"]


def test_all_pairs_are_set_or_none(tmp_path: Path) -> None:
    path = config_file(tmp_path, "")
    with pytest.raises(ConfigWriteError, match=r"max_concurrent_runs: must be a whole number"):
        run(tmp_path, "set", "tui.debug", "true", "gateway.max_concurrent_runs", "many")
    with pytest.raises(UnknownKey, match="did you mean max_concurrent_runs"):
        run(tmp_path, "set", "tui.debug", "true", "gateway.max_concurent_runs", "3")
    with pytest.raises(UnknownKey, match="is no dotted path"):
        run(tmp_path, "set", "a b", "1")
    with pytest.raises(typer.BadParameter, match="every PATH needs a VALUE"):
        run(tmp_path, "set", "tui.debug", "true", "tui.theme")
    assert path.read_text() == ""


def test_what_belongs_together_can_be_set_at_once(tmp_path: Path) -> None:
    tls = ["gateway.rpc.tls_cert", "c", "gateway.rpc.tls_key", "k"]
    with pytest.raises(ConfigWriteError, match="belong together"):
        run(tmp_path, "set", *tls[:2])
    token = ["gateway.rpc.tokens", '[{ id = "desk", secret = "DESK" }]']
    assert run(tmp_path, "set", *tls, "gateway.rpc.listen", "0.0.0.0:1", *token) == 0


def test_a_credential_is_not_echoed_and_its_place_is_warned_about(
    tmp_path: Path, capsys: Captured
) -> None:
    assert run(tmp_path, "set", "providers.openai.api_key", "sk-hidden") == 0
    shown = capsys.readouterr()
    assert "sk-hidden" not in shown.out + shown.err
    assert "warning: providers.openai.api_key stands in the file" in shown.err


def test_another_place_is_named_only_where_there_is_one(tmp_path: Path, capsys: Captured) -> None:
    """The token of a webhook has no key that would name a stored secret."""
    assert run(tmp_path, "set", "gateway.webhook.integrations.notes.token", "hidden") == 0
    shown = capsys.readouterr()
    assert "hidden" not in shown.out
    assert shown.err == ""


def test_a_value_that_does_not_count_is_told(tmp_path: Path, capsys: Captured) -> None:
    assert run(tmp_path, "set", "defaults.model", "x", LEMON_DEFAULT_MODEL="y") == 0
    told = "lemon: defaults.model does not count now: the environment sets it too\n"
    assert capsys.readouterr().err == told


def test_deleting_what_is_not_there_changes_nothing(tmp_path: Path, capsys: Captured) -> None:
    path = config_file(tmp_path, "[tui]\ndebug = true\n")
    assert run(tmp_path, "unset", "tui.theme") == 0
    assert capsys.readouterr().out == f"{path}: nothing to delete\n"


# -- trust -----------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_core.47")
def test_trust_shows_what_it_gives_and_asks(tmp_path: Path, capsys: Captured) -> None:
    config_file(
        tmp_path,
        """\
        [defaults]
        model = "theirs"
        [gateway]
        max_concurrent_runs = 9
        [providers.openai]
        api_key = "hidden"
        """,
        project=True,
    )
    project = tmp_path / "project"
    assert run(tmp_path, "trust", ".") == 1
    asked = capsys.readouterr()
    assert asked.out.splitlines()[1:] == [
        "  gateway.max_concurrent_runs = 9",
        '  providers.openai.api_key = "[REDACTED]"',
        "Nothing was changed.",
    ]
    assert "give --yes" in asked.err
    assert run(tmp_path, "get", "gateway.max_concurrent_runs") == 0
    assert run(tmp_path, "trust", str(project), "--yes", "--json") == 0
    assert run(tmp_path, "get", "gateway.max_concurrent_runs") == 0
    first, *document, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("2", "9")
    assert json.loads("".join(document))["trusted"] is True

    assert run(tmp_path, "trust", "--list") == 0
    config_file(tmp_path, "[gateway]\nmax_concurrent_runs = 10\n", project=True)
    assert run(tmp_path, "trust", "--list") == 0
    assert run(tmp_path, "get", "gateway.max_concurrent_runs") == 0
    assert capsys.readouterr().out.splitlines() == [
        str(project),
        f"{project}  (its files have changed: trust it again)",
        "2",
    ]
    assert run(tmp_path, "trust", ".", "--revoke") == 0
    assert run(tmp_path, "trust", "--list", "--json") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["[]"]


def test_trust_shows_the_code_that_it_lets_in(tmp_path: Path, capsys: Captured) -> None:
    """DESIGN ruling 40."""
    folder = tmp_path / "project" / ".lemon" / "extensions"
    folder.mkdir(parents=True)
    (folder / "deploy.py").write_text("EXTENSION = None\n")
    assert run(tmp_path, "trust", ".", "--yes") == 0
    told = capsys.readouterr().out
    assert "these files of it are used as well:\n  .lemon/extensions/deploy.py\n" in told
    assert run(tmp_path, "trust", ".", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["code"] == [".lemon/extensions/deploy.py"]
    (folder / "deploy.py").write_text("changed\n")
    assert run(tmp_path, "trust", "--list") == 0
    assert "its files have changed" in capsys.readouterr().out


def test_only_a_folder_with_a_usable_file_can_be_trusted(tmp_path: Path) -> None:
    with pytest.raises(TrustError, match="is not a directory"):
        run(tmp_path, "trust", "none", "--yes")
    config_file(tmp_path, "[gateway]\nhealth_port = -1\n", project=True)
    with pytest.raises(ConfigError, match="health_port"):
        run(tmp_path, "trust", ".", "--yes")
    with pytest.raises(typer.BadParameter, match="say which folder"):
        run(tmp_path, "trust")
