"""`lemon quality` and `lemon architecture-docs` (specification lemon_core 16)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from lemon_core.cli import architecture_docs, quality
from lemon_core.cli.source_tree import NoSourceTree
from lemon_core.quality.table import DOC_PATH, END, START
from lemon_core.tests.cli.commands import run_command
from lemon_core.tests.quality.trees import clean_tree, write_tree

Capture = pytest.CaptureFixture[str]
DOCUMENT = {DOC_PATH: f"# Boundaries\n\n{START}\n\nstale\n{END}\n"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree whose table is stale, and nothing else is wrong."""
    return write_tree(clean_tree(tmp_path / "tree"), DOCUMENT)


def test_the_table_is_written_once(tree: Path, tmp_path: Path, capsys: Capture) -> None:
    app = architecture_docs.app
    assert run_command(app, "--check", home=tmp_path, cwd=tree) == 1
    assert f"{DOC_PATH}:5: stale_architecture_doc" in capsys.readouterr().out
    assert run_command(app, home=tmp_path, cwd=tree) == 0
    assert capsys.readouterr().out == f"{DOC_PATH} is written.\n"
    assert "| lemon_top | lemon_base | lemon_base | (none) |" in (tree / DOC_PATH).read_text()
    assert run_command(app, "--check", home=tmp_path, cwd=tree) == 0
    assert capsys.readouterr().out == f"{DOC_PATH} is up to date.\n"
    assert run_command(app, "--root", str(tree), home=tmp_path) == 0


def test_a_document_without_markers_is_one_line(
    tree: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tree / DOC_PATH).write_text("# Boundaries\n")
    assert run_command(architecture_docs.app, home=tmp_path, cwd=tree) == 1
    out, err = capsys.readouterr()
    assert (out, err.startswith(f"lemon: {DOC_PATH}: the lines"), err.count("\n")) == ("", True, 1)


def test_every_issue_is_printed(tree: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run_command(quality.app, home=tmp_path, cwd=tree / "apps" / "lemon_top") == 1
    out = capsys.readouterr().out
    assert "[ok]   architecture\n" in out
    assert "[fail] architecture_docs: 1 issue\n  docs/architecture_boundaries.md:5: " in out
    assert out.splitlines()[-1] == "1 issue."


def test_a_clean_tree_exits_with_0(tree: Path, tmp_path: Path, capsys: Capture) -> None:
    run_command(architecture_docs.app, home=tmp_path, cwd=tree)
    capsys.readouterr()
    assert run_command(quality.app, "--json", "--root", "tree", home=tmp_path) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["root"], document["ok"]) == (str(tree), True)
    assert [check["name"] for check in document["checks"]][:2] == [
        "architecture",
        "architecture_docs",
    ]


def test_the_configuration_can_be_checked_as_well(
    tree: Path, tmp_path: Path, capsys: Capture
) -> None:
    run_command(architecture_docs.app, home=tmp_path, cwd=tree)
    write_tree(tmp_path, {".lemon/config.toml": "[tui]\ndebug = 3\nbug = 1\n"})
    assert run_command(quality.app, home=tmp_path, cwd=tree) == 0
    capsys.readouterr()
    assert run_command(quality.app, "--validate-config", home=tmp_path, cwd=tree) == 1
    out = capsys.readouterr().out
    assert f"invalid_config: {tmp_path}/.lemon/config.toml:2: tui.debug: must be true" in out
    assert "notes: 1 (-v shows them)" in out
    run_command(quality.app, "--validate-config", "-v", home=tmp_path, cwd=tree)
    assert f"config_warning: {tmp_path}/.lemon/config.toml:3: tui.bug" in capsys.readouterr().out


def test_lemon_path_names_the_tree(tree: Path, tmp_path: Path, capsys: Capture) -> None:
    environ = {"LEMON_PATH": str(tree)}
    assert run_command(architecture_docs.app, "--check", home=tmp_path, environ=environ) == 1


@pytest.mark.parametrize("app", [quality.app, architecture_docs.app])
def test_outside_a_source_tree_is_one_clear_line(tmp_path: Path, app: typer.Typer) -> None:
    for arguments in ((), ("--root", str(tmp_path))):
        with pytest.raises(NoSourceTree, match="is not in a source tree of Lemon") as caught:
            run_command(app, *arguments, home=tmp_path)
        assert "\n" not in str(caught.value)
