"""The generated table. Specification lemon_core 16, "Generated table"."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lemon_core.quality import edges_file, table
from lemon_core.quality.edges_file import DeclaredEdges
from lemon_core.quality.policy import POLICY_PATH, ArchitecturePolicy
from lemon_core.tests.quality.trees import clean_tree, found, policy_text, write_tree

ROWS = {"lemon_base": [], "lemon_top": ["lemon_base"]}
TABLE = """\
| App | Actual | Allowed | Reference-only |
|---|---|---|---|
| lemon_base | (none) | (none) | lemon_top |
| lemon_top | lemon_base | lemon_base | (none) |
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    text = policy_text(ROWS, reference_only={"lemon_base": ["lemon_top"]})
    page = f"# Boundaries\n\n{table.START}\n{table.END}\n\nMore.\n"
    return write_tree(clean_tree(tmp_path), {POLICY_PATH: text, table.DOC_PATH: page})


def _fresh(root: Path) -> str:
    return table.render(ArchitecturePolicy.load(root), table.actual_edges(root))


def test_render_sorts_apps_and_says_none(root: Path) -> None:
    assert _fresh(root) == TABLE


def test_update_makes_the_check_pass_and_keeps_the_rest(root: Path) -> None:
    assert table.update(root, _fresh(root)) is True
    assert table.check(root).ok
    assert table.update(root, _fresh(root)) is False
    assert (root / table.DOC_PATH).read_text("utf-8") == (
        f"# Boundaries\n\n{table.START}\n\n{TABLE}\n{table.END}\n\nMore.\n"
    )


@pytest.mark.behaviour("lemon_core.43")
def test_a_table_edited_by_hand_is_stale(root: Path) -> None:
    table.update(root, _fresh(root))
    page = root / table.DOC_PATH
    page.write_text(page.read_text("utf-8").replace("| lemon_base |", "| nothing |", 1), "utf-8")
    report = table.check(root)
    assert found(report) == [("stale_architecture_doc", f"{table.DOC_PATH}:7")]
    assert "bazel run //docs:update" in report.issues[0].message


@pytest.mark.parametrize(
    "page",
    [
        "# No markers\n",
        f"{table.START}\n",
        f"{table.END}\n{table.START}\n",
        f"{table.START}\n{table.START}\n{table.END}\n",
    ],
)
def test_missing_markers_are_told(root: Path, page: str) -> None:
    (root / table.DOC_PATH).write_text(page, "utf-8")
    assert found(table.check(root)) == [("missing_architecture_doc_markers", table.DOC_PATH)]


def test_a_missing_document_is_told(root: Path) -> None:
    (root / table.DOC_PATH).unlink()
    assert found(table.check(root)) == [("missing_architecture_doc_markers", table.DOC_PATH)]


def _edges_file(folder: Path, deps: list[str], test_deps: list[str]) -> Path:
    path = folder / "lemon_top.edges.json"
    path.write_text(json.dumps({"app": "lemon_top", "deps": deps, "test_deps": test_deps}))
    return path


def test_an_edges_file_gives_the_apps_behind_its_labels(tmp_path: Path) -> None:
    labels = ["//apps/lemon_base", "//apps/lemon_base:rpc", "@pypi//anyio"]
    path = _edges_file(tmp_path, labels, ["//apps/lemon_x:testing", "//apps/lemon_top:testing"])
    assert DeclaredEdges.load(path).edges() == {"lemon_base", "lemon_x"}


def test_build_and_parser_are_compared_list_by_list(root: Path) -> None:
    same = _edges_file(root, ["//apps/lemon_base"], [])
    assert edges_file.check(root, [same]).ok
    other = _edges_file(root, [], ["//apps/lemon_base"])
    assert [issue.message for issue in edges_file.check(root, [other]).issues] == [
        "only the BUILD file shows //apps/lemon_base in deps",
        "only the build has //apps/lemon_base in test_deps",
    ]
