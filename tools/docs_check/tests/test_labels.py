"""Labels against the BUILD files of a small tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs_check.labels import labels_in, missing

APP = """
load("//tools/build:lemon_app.bzl", "lemon_app")

lemon_app(
    name = "core",
    deps = ["//apps/none"],
    parts = {"rpc": {}, "testing": {"third_party": ["pytest"]}},
)

alias(
    name = "server",
    actual = "//tools/release:server",
)
"""
TOOLS = """
pytest_tests(name = "tests", srcs = glob(["tests/*.py"]))
py_grpc_library(name = "wire", protos = ["wire.proto"])
native.filegroup(name = "data", srcs = [])
workspace_files()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in {
        "apps/core/BUILD.bazel": APP,
        "apps/core/tests/deep/test_slots.py": "",
        "tools/BUILD": TOOLS,
        "tools/tests/test_x.py": "",
        "tools/run.py": "",
        "docs/guide.md": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "label",
    [
        "//...",
        "//apps/...",
        "//apps/core",
        "//apps/core:all",
        "//apps/core:server",
        "//apps/core:rpc",
        "//apps/core:testing",
        "//apps/core:mypy",
        "//apps/core:core.edges.json",
        "//apps/core:files",
        "//apps/core:tests/deep/test_slots",
        "//tools:tests",
        "//tools:tests.sources",
        "//tools:tests/test_x",
        "//tools:wire.stubs",
        "//tools:data",
        "//tools:files",
        "//tools:run.py",
    ],
)
def test_a_target_that_is_there(root: Path, label: str) -> None:
    assert missing(root, label) is None


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("//apps/core:other", "//apps/core:other: apps/core/BUILD.bazel has no target other"),
        ("//apps/none", "//apps/none: apps/none/ has no BUILD.bazel"),
        ("//docs:guide", "//docs:guide: docs/ has no BUILD.bazel"),
        ("//docs/...", "//docs/...: no package below docs/"),
        ("//tools", "//tools: tools/BUILD has no target tools"),
        ("//tools:mypy", "//tools:mypy: tools/BUILD has no target mypy"),
    ],
)
def test_a_target_that_is_not(root: Path, label: str, reason: str) -> None:
    assert missing(root, label) == reason


def test_labels_in_a_word() -> None:
    assert labels_in("//a:b") == ["//a:b"]
    assert labels_in("-//a/...") == ["//a/..."]
    assert labels_in("deps(//a:b) - //c") == ["//a:b", "//c"]
    assert labels_in("--jobs=2") == []
