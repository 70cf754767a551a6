"""Edges out of BUILD files. Specification lemon_core 16, "Actual deps"."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.quality import architecture
from lemon_core.quality.build_files import AppLabel, read_app
from lemon_core.tests.quality.trees import clean_tree, found, write_tree

pytestmark = pytest.mark.behaviour("lemon_core.43")


@pytest.mark.parametrize(
    ("label", "parsed"),
    [
        ("//apps/lemon_base", AppLabel("lemon_base")),
        ("//apps/lemon_base:lemon_base", AppLabel("lemon_base")),
        ("//apps/lemon_base:rpc", AppLabel("lemon_base", "rpc")),
        ("//apps/lemon_base/testing", AppLabel("lemon_base", "testing")),
        ("@//apps/lemon_base:testing", AppLabel("lemon_base", "testing")),
        ("@@//apps/lemon_base", AppLabel("lemon_base")),
        ("@pypi//anyio", None),
        ("//tools/apps/lemon_base", None),
        (":lemon_base", None),
    ],
)
def test_a_label_names_its_app_and_part(label: str, parsed: AppLabel | None) -> None:
    assert AppLabel.parse(label) == parsed


@pytest.mark.parametrize(
    "text",
    [
        'lemon_app(deps = ["//apps/one", "//apps/two"])',
        'lemon_app(deps = ["//apps/one"], test_deps = ["//apps/two:testing"])',
        'lemon_app(deps = ["//apps/one"] + ["//apps/two"])',
        'lemon_app(deps = ["//apps/one"] + (["//apps/two"] + []))',
        'lemon_app(deps = ["//apps/one"] + select({"//:x": ["//apps/two"], "//y:z": []}))',
        'lemon_app(deps = wrapped(["//apps/one", "//apps/two"], strict = True))',
        'lemon_app(deps = outer(inner(["//apps/one"])) + outer(["//apps/two"]))',
        'MORE = ["//apps/two"]\nlemon_app(deps = ["//apps/one"] + MORE)',
        'ALL = ["//apps/one"]\nALL += ["//apps/two"]\nlemon_app(deps = ALL)',
        'TWO = "//apps/two"\nlemon_app(deps = ["//apps/one", TWO])',
        'lemon_app(deps = ["//apps/" + "one", Label("//apps/two")])',
        'lemon_app(deps = ["//apps/one"] if True else ["//apps/two"])',
        'lemon_app(deps = ["//apps/one"])\npy_test(name = "t", deps = ["//apps/two:rpc"])',
        'lemon_app(**{"deps": ["//apps/one", "//apps/two"]})',
        'ARGS = dict(deps = ["//apps/one", "//apps/two"])\nlemon_app(**ARGS)',
        '[py_test(name = n, deps = ["//apps/one", "//apps/two"]) for n in ["a", "b"]]',
    ],
)
def test_wrapped_and_concatenated_deps_are_read(tmp_path: Path, text: str) -> None:
    write_tree(tmp_path, {"apps/app/BUILD.bazel": text})
    declared = read_app(tmp_path, "app")
    assert (declared.edges("app"), declared.unreadable) == (frozenset({"one", "two"}), ())


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("core_deps()", "`core_deps()` shows no list"),
        ("core_deps(PEOPLE)", "`core_deps(PEOPLE)` shows no list"),
        ("DEPS", "`DEPS` is not bound to a literal in this file"),
        ('["//apps/" + NAME]', "`NAME` is not bound to a literal in this file"),
        ('["//apps/%s" % "one"]', "cannot read `'//apps/%s' % 'one'`"),
        ("[d for d in DEPS]", "cannot read `[d for d in DEPS]`"),
        ("TABLE['one']", "cannot read `TABLE['one']`"),
        ('["//apps/{}".format("one")]', "`'//apps/{}'.format('one')` shows no list"),
    ],
)
def test_deps_that_cannot_be_read_are_an_issue(
    tmp_path: Path, expression: str, reason: str
) -> None:
    root = clean_tree(tmp_path)
    build = f'lemon_app(\n    name = "lemon_base",\n    deps = {expression},\n)\n'
    write_tree(root, {"apps/lemon_base/BUILD.bazel": build})
    issues = [i for i in architecture.check(root).issues if i.code == "unreadable_deps"]
    assert [(issue.app, issue.path) for issue in issues] == [
        ("lemon_base", "apps/lemon_base/BUILD.bazel:3")
    ]
    assert reason in issues[0].message


def test_arguments_that_are_spread_out_of_sight_are_an_issue(tmp_path: Path) -> None:
    root = write_tree(clean_tree(tmp_path), {"apps/lemon_base/BUILD.bazel": "lemon_app(**COMMON)"})
    assert found(architecture.check(root)) == [("unreadable_deps", "apps/lemon_base/BUILD.bazel:1")]


def test_a_build_file_that_does_not_parse_is_an_issue(tmp_path: Path) -> None:
    root = write_tree(clean_tree(tmp_path), {"apps/lemon_base/BUILD.bazel": "\nlemon_app(deps = ["})
    assert found(architecture.check(root)) == [("unreadable_deps", "apps/lemon_base/BUILD.bazel:2")]


def test_a_nested_build_file_cannot_hide_an_edge(tmp_path: Path) -> None:
    nested = 'py_library(name = "x", deps = ["//apps/lemon_top"])'
    root = write_tree(clean_tree(tmp_path), {"apps/lemon_base/inner/BUILD": nested})
    report = architecture.check(root)
    assert [issue.code for issue in report.issues] == ["forbidden_dependency", "unused_dependency"]
