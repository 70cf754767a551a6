"""Edges against the policy, imports against the edges. Specification lemon_core 16, "Issues"."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lemon_core.quality import architecture
from lemon_core.quality.policy import POLICY_PATH
from lemon_core.quality.report import Issue
from lemon_core.tests.quality.trees import app_text, clean_tree, found, policy_text, write_tree

pytestmark = pytest.mark.behaviour("lemon_core.43")

TOP = "apps/lemon_top/BUILD.bazel"
ROWS = {"lemon_base": [], "lemon_top": ["lemon_base"]}


def test_a_clean_tree_has_no_issue(tmp_path: Path) -> None:
    report = architecture.check(clean_tree(tmp_path))
    assert (report.ok, report.issues, report.notes) == (True, (), ())


def test_an_edge_without_permission_names_app_and_edge(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    write_tree(root, {POLICY_PATH: policy_text({"lemon_base": [], "lemon_top": []}, ROWS)})
    assert architecture.check(root).issues == (
        Issue(
            "forbidden_dependency",
            "ALLOWED does not permit the edge lemon_top -> lemon_base; "
            "remove it or change the policy",
            "lemon_top",
            TOP,
        ),
    )


def test_a_permission_whose_edge_is_gone_is_stale(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    write_tree(root, {TOP: app_text("lemon_top", []), "apps/lemon_top/use.py": ""})
    assert found(architecture.check(root)) == [("stale_dependency_permission", TOP)]
    assert "lemon_top -> lemon_base" in architecture.check(root).issues[0].message


def test_an_import_without_an_edge_is_told_with_file_and_line(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    write_tree(root, {"apps/lemon_base/deep/up.py": "import os\n\nimport lemon_top.use\n"})
    assert architecture.check(root).issues == (
        Issue(
            "forbidden_namespace_reference",
            "imports lemon_top.use, but lemon_base has no edge to lemon_top; "
            "use a port of lemon_core, or add //apps/lemon_top to the deps and the policy",
            "lemon_base",
            "apps/lemon_base/deep/up.py:3",
        ),
    )


@pytest.mark.parametrize(
    "source",
    [
        "from lemon_top import use",
        "from lemon_top.use import thing",
        'import importlib\nimportlib.import_module("lemon_top.use")',
        "def late() -> None:\n    import lemon_top",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lemon_top",
    ],
)
def test_every_form_of_import_is_seen(tmp_path: Path, source: str) -> None:
    root = write_tree(clean_tree(tmp_path), {"apps/lemon_base/up.py": source})
    codes = [issue.code for issue in architecture.check(root).issues]
    assert codes == ["forbidden_namespace_reference"]


def test_an_app_of_the_final_graph_counts_before_it_exists(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    write_tree(
        root,
        {
            POLICY_PATH: policy_text(ROWS, {**ROWS, "lemon_later": []}),
            "apps/lemon_base/up.py": "import lemon_later\n",
        },
    )
    assert found(architecture.check(root)) == [
        ("forbidden_namespace_reference", "apps/lemon_base/up.py:1")
    ]


def test_an_exception_permits_an_import(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    write_tree(
        root,
        {
            POLICY_PATH: policy_text(ROWS, reference_only={"lemon_base": ["lemon_top"]}),
            "apps/lemon_base/up.py": "import lemon_top\n",
        },
    )
    assert architecture.check(root).ok


def test_an_exception_permits_no_edge(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    rows: dict[str, list[str]] = {"lemon_base": [], "lemon_top": []}
    write_tree(root, {POLICY_PATH: policy_text(rows, ROWS, {"lemon_top": ["lemon_base"]})})
    assert found(architecture.check(root)) == [("forbidden_dependency", TOP)]


def test_an_exception_outside_the_final_ones_is_told(tmp_path: Path) -> None:
    text = policy_text(ROWS, None, {"lemon_base": ["lemon_top"]}, {"lemon_base": ["lemon_x"]})
    root = write_tree(clean_tree(tmp_path), {POLICY_PATH: text})
    assert found(architecture.check(root)) == [("outside_final", POLICY_PATH)]


@pytest.mark.parametrize("final", [{"lemon_base": []}, {"lemon_base": [], "lemon_top": []}])
def test_a_row_or_edge_outside_the_final_graph_is_told(
    tmp_path: Path, final: dict[str, list[str]]
) -> None:
    root = write_tree(clean_tree(tmp_path), {POLICY_PATH: policy_text(ROWS, final)})
    assert found(architecture.check(root)) == [("outside_final", TOP)]


def test_final_edges_that_are_not_there_yet_do_not_fail(tmp_path: Path) -> None:
    final = {"lemon_base": ["lemon_x"], "lemon_top": ["lemon_base"], "lemon_x": []}
    root = write_tree(clean_tree(tmp_path), {POLICY_PATH: policy_text(ROWS, final)})
    report = architecture.check(root)
    assert report.ok
    assert [(note.code, note.message) for note in report.notes] == [
        ("target_dependency_drift", "FINAL has the edge lemon_base -> lemon_x")
    ]


def test_a_dep_that_no_source_imports_is_unused(tmp_path: Path) -> None:
    root = write_tree(clean_tree(tmp_path), {"apps/lemon_top/use.py": "import lemon_topper\n"})
    assert found(architecture.check(root)) == [("unused_dependency", TOP)]


def test_a_dep_that_only_tests_import_belongs_to_test_deps(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    (root / "apps/lemon_top/use.py").rename(root / "apps/lemon_top/__main__.py")
    write_tree(
        root,
        {
            "apps/lemon_top/__main__.py": "",
            "apps/lemon_top/tests/test_use.py": "import lemon_base\n",
        },
    )
    (issue,) = architecture.check(root).issues
    assert (issue.code, issue.message) == (
        "unused_dependency",
        "no source imports //apps/lemon_base of deps; move it to test_deps",
    )


def test_test_deps_serve_tests_and_the_part_testing_alone(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    build = app_text("lemon_top", [], ["//apps/lemon_base"])
    write_tree(
        root,
        {
            TOP: build,
            "apps/lemon_top/tests/test_use.py": "import lemon_base\n",
            "apps/lemon_top/testing/fakes.py": "import lemon_base\n",
        },
    )
    assert found(architecture.check(root)) == [
        ("forbidden_namespace_reference", "apps/lemon_top/use.py:3")
    ]


def test_unused_test_deps_are_told(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    build = app_text("lemon_top", ["//apps/lemon_base"], ["//apps/lemon_base:testing"])
    write_tree(root, {TOP: build})
    (issue,) = architecture.check(root).issues
    assert issue.message == "no test imports //apps/lemon_base:testing of test_deps; remove it"


def test_the_label_of_a_part_is_an_edge_and_has_to_be_used(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    labels = ["//apps/lemon_base:rpc"]
    write_tree(root, {TOP: app_text("lemon_top", labels)})
    assert found(architecture.check(root)) == [("unused_dependency", TOP)]
    write_tree(root, {"apps/lemon_top/use.py": "from lemon_base.rpc import client\n"})
    assert architecture.check(root).ok
    write_tree(root, {POLICY_PATH: policy_text({"lemon_base": [], "lemon_top": []}, ROWS)})
    assert found(architecture.check(root)) == [("forbidden_dependency", TOP)]


def test_an_app_without_a_row_and_a_row_without_an_app_are_told(tmp_path: Path) -> None:
    root = clean_tree(tmp_path)
    rows: dict[str, list[str]] = {"lemon_base": [], "lemon_gone": []}
    write_tree(root, {POLICY_PATH: policy_text(rows, {**ROWS, **rows})})
    assert found(architecture.check(root)) == [
        ("unknown_app", TOP),
        ("missing_app", POLICY_PATH),
    ]


def test_a_source_that_does_not_parse_is_told(tmp_path: Path) -> None:
    root = write_tree(clean_tree(tmp_path), {"apps/lemon_base/bad.py": "x = 1\ndef f(:\n"})
    assert found(architecture.check(root)) == [("source_parse_error", "apps/lemon_base/bad.py:2")]


def test_an_unreadable_policy_is_one_issue(tmp_path: Path) -> None:
    root = write_tree(clean_tree(tmp_path), {POLICY_PATH: "ALLOWED = rows()\n"})
    assert found(architecture.check(root)) == [("policy_unreadable", f"{POLICY_PATH}:1")]


def test_one_app_can_be_checked_alone(tmp_path: Path) -> None:
    root = write_tree(clean_tree(tmp_path), {"apps/lemon_base/up.py": "import lemon_top\n"})
    assert architecture.check_imports(root, "lemon_top").ok
    assert found(architecture.check_imports(root, "lemon_base")) == [
        ("forbidden_namespace_reference", "apps/lemon_base/up.py:1")
    ]


def _cases() -> dict[str, dict[str, object]]:
    # The Starlark unit test loads the same file, so the two forms cannot drift apart.
    name = "tools/architecture/edge_cases.bzl"
    root = next(folder for folder in Path(__file__).parents if (folder / name).is_file())
    for node in ast.parse((root / name).read_text("utf-8")).body:
        if isinstance(node, ast.Assign):
            cases: dict[str, dict[str, object]] = ast.literal_eval(node.value)
            return cases
    raise AssertionError(f"{name} holds no cases")


@pytest.mark.parametrize("case", _cases().values(), ids=_cases().keys())
def test_edge_errors_gives_what_the_shared_cases_say(case: dict[str, object]) -> None:
    errors = architecture.edge_errors(
        _text(case["app"]),
        _texts(case["deps"]),
        _texts(case["test_deps"]),
        _rows(case["allowed"]),
        _rows(case["final"]),
    )
    assert [[error.code, error.dep] for error in errors] == case["errors"]


def _text(value: object) -> str:
    assert isinstance(value, str)
    return value


def _texts(value: object) -> list[str]:
    assert isinstance(value, list)
    return [_text(item) for item in value]


def _rows(value: object) -> dict[str, frozenset[str]]:
    assert isinstance(value, dict)
    return {_text(app): frozenset(_texts(row)) for app, row in value.items()}
