"""`lemon secrets` (specification lemon_core 11 and 17, lemon_cli 2.1)."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest
import typer

from lemon_core.cli.known import masked
from lemon_core.cli.secrets import app
from lemon_core.known_secrets import KNOWN_SECRETS
from lemon_core.secrets import SecretsError
from lemon_core.tests.cli.commands import run_command

Captured = pytest.CaptureFixture[str]

VALUE = "sk-abcdefghijklmnop"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a master key."""
    assert run(tmp_path, "init") == 0
    return tmp_path


def run(home: Path, *arguments: str, **environ: str) -> int:
    """`lemon secrets` with these arguments."""
    return run_command(app, *arguments, home=home, environ={"HOME": str(home), **environ})


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Make `text` the standard input, which is no terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_master_key_is_made_once(tmp_path: Path, capsys: Captured) -> None:
    assert run(tmp_path, "init", "--target", "file") == 0
    key = tmp_path / ".lemon" / "secrets_master_key"
    assert f"The master key is in {key}." in capsys.readouterr().out
    assert (mode(key), mode(key.parent)) == (0o600, 0o700)
    text = key.read_text()
    with pytest.raises(SecretsError, match="makes every stored secret unreadable") as caught:
        run(tmp_path, "init")
    assert caught.value.code == "key_file_exists"
    assert key.read_text() == text
    assert run(tmp_path, "init", "--force") == 0
    shown = capsys.readouterr()
    assert "cannot be read any more" in shown.err
    assert key.read_text() != text
    assert text.strip() not in shown.out + shown.err


def test_a_place_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="file, keychain"):
        run(tmp_path, "init", "--target", "cloud")


def test_a_secret_is_stored_listed_and_removed_without_its_value(
    home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, f"{VALUE}\n")
    assert run(home, "set", "A_KEY", "--stdin", "--provider", "desk") == 0
    typed(monkeypatch, VALUE)
    assert run(home, "set", "B_KEY", "--expires-at", "32503680000000") == 0
    assert run(home, "list") == 0
    assert run(home, "list", "--json") == 0
    shown = capsys.readouterr()
    assert VALUE not in shown.out + shown.err
    lines = shown.out.splitlines()
    assert lines[:2] == ["Stored A_KEY.", "Stored B_KEY."]
    assert lines[2].split()[:3] == ["NAME", "PROVIDER", "CHANGED"]
    assert lines[3].split()[:2] == ["A_KEY", "desk"]
    assert "3000-01-01" in lines[4]
    document = json.loads("\n".join(lines[5:]))
    assert [(row["name"], row["provider"]) for row in document] == [
        ("A_KEY", "desk"),
        ("B_KEY", "manual"),
    ]
    assert run(home, "delete", "A_KEY") == 0
    assert run(home, "delete", "A_KEY") == 1
    assert "there is no secret 'A_KEY'" in capsys.readouterr().err


def test_a_value_in_the_arguments_works_and_warns(home: Path, capsys: Captured) -> None:
    assert run(home, "set", "A_KEY", VALUE) == 0
    shown = capsys.readouterr()
    assert "warning: the value stands in your shell's history" in shown.err
    assert VALUE not in shown.out + shown.err


def test_on_a_terminal_the_value_is_asked_for_without_echo(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, object]] = []

    def prompt(text: str, **options: object) -> str:
        asked.append((text, options.get("hide_input")))
        return VALUE

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(typer, "prompt", prompt)
    assert run(home, "set", "A_KEY") == 0
    assert asked == [("Value of A_KEY", True)]


def test_wrong_arguments_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(typer.BadParameter, match="give the value once"):
        run(home, "set", "A_KEY", VALUE, "--stdin")
    with pytest.raises(typer.BadParameter, match="that time is over"):
        run(home, "set", "A_KEY", VALUE, "--expires-at", "5")
    typed(monkeypatch, "\n")
    with pytest.raises(typer.BadParameter, match="the value is empty"):
        run(home, "set", "A_KEY", "--stdin")


def test_without_a_master_key_the_way_to_one_is_named(tmp_path: Path, capsys: Captured) -> None:
    with pytest.raises(SecretsError, match="create one with lemon secrets init"):
        run(tmp_path, "set", "A_KEY", VALUE)
    assert run(tmp_path, "status") == 0
    assert "Create one: lemon secrets init" in capsys.readouterr().out
    assert mode(tmp_path / ".lemon") == 0o700


def test_status_says_where_the_key_is_and_how_many_secrets(home: Path, capsys: Captured) -> None:
    run(home, "set", "A_KEY", VALUE)
    capsys.readouterr()
    assert run(home, "status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "configured": True,
        "source": "file",
        "problem": None,
        "keychain_available": False,
        "env_fallback": False,
        "owner": "default",
        "count": 1,
    }
    assert run(home, "status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "✓ the master key comes from the file"
    assert lines[1].split() == ["secrets", "stored", "1"]


def test_check_masks_what_it_finds(home: Path, capsys: Captured) -> None:
    run(home, "set", "OPENAI_API_KEY", VALUE)
    environ = {"GROQ_API_KEY": "gsk_123456789", "BRAVE_API_KEY": "12345678"}
    capsys.readouterr()
    assert run(home, "check", "--json", **environ) == 0
    document = capsys.readouterr().out
    found = {row["name"]: row for row in json.loads(document)}
    assert tuple(found) == KNOWN_SECRETS
    assert {
        name: (row["source"], row["masked"]) for name, row in found.items() if row["masked"]
    } == {
        "OPENAI_API_KEY": ("store", "sk-a…mnop"),
        "GROQ_API_KEY": ("env", "gsk_…6789"),
        "BRAVE_API_KEY": ("env", "***"),
    }
    assert found["GITHUB_TOKEN"] == {
        "name": "GITHUB_TOKEN",
        "kind": "tool",
        "source": "missing",
        "masked": None,
        "problem": None,
    }
    assert run(home, "check", **environ) == 0
    table = capsys.readouterr().out
    assert "OPENAI_API_KEY                store    sk-a…mnop\n" in table
    assert table.endswith("3 of 23 are there.\n")
    for secret in (VALUE, *environ.values()):
        assert secret not in document + table
    assert run(home, "list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["usage_count"], row["last_used_at"]) == (0, None)  # a look is no use
    assert [masked(text) for text in ("", "12345678", "123456789")] == ["***", "***", "1234…6789"]


def test_a_secret_of_another_key_is_told_apart_from_a_missing_one(
    home: Path, capsys: Captured
) -> None:
    run(home, "set", "OPENAI_API_KEY", VALUE)
    run(home, "init", "--force")
    capsys.readouterr()
    assert run(home, "check") == 0
    assert "OPENAI_API_KEY                store    decrypt_failed\n" in capsys.readouterr().out


def test_well_known_variables_are_imported(home: Path, capsys: Captured) -> None:
    environ = {"OPENAI_API_KEY": VALUE, "GITHUB_TOKEN": "ghp_1234567", "UNKNOWN_KEY": "x"}
    capsys.readouterr()
    assert run(home, "import-env", "--dry-run", **environ) == 0
    assert capsys.readouterr().out.splitlines() == [
        "to import: OPENAI_API_KEY",
        "to import: GITHUB_TOKEN",
        "2 to import, 0 already in store, 21 not set",
    ]
    run(home, "set", "GITHUB_TOKEN", "mine")
    capsys.readouterr()
    assert run(home, "import-env", **environ) == 0
    assert capsys.readouterr().out.splitlines() == [
        "imported: OPENAI_API_KEY",
        "already in store: GITHUB_TOKEN",
        "1 imported, 1 already in store, 21 not set",
    ]
    assert run(home, "import-env", "--force", "--json", **environ) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["imported"] == ["OPENAI_API_KEY", "GITHUB_TOKEN"]
    assert (document["already_stored"], len(document["not_set"])) == ([], 21)
    assert run(home, "list", "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [
        "GITHUB_TOKEN",
        "OPENAI_API_KEY",
    ]
