"""The duplicate-test guard. Specification lemon_core 16, "Duplicate test guard"."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.quality import tests
from lemon_core.tests.quality.trees import found, write_tree

TEST = "def test_one() -> None: ...\n"
PACKAGES = {
    "apps/a/__init__.py": "",
    "apps/a/tests/__init__.py": "",
    "apps/a/tests/test_x.py": TEST,
    "apps/b/__init__.py": "",
    "apps/b/tests/__init__.py": "",
    "apps/b/tests/test_x.py": TEST,
}


def test_the_same_file_name_in_two_packages_is_fine(tmp_path: Path) -> None:
    root = write_tree(tmp_path, PACKAGES)
    assert tests.check(root).issues == ()
    assert tests.module_name(root, Path("apps/a/tests/test_x.py")) == "a.tests.test_x"


@pytest.mark.behaviour("lemon_core.43")
def test_two_files_of_one_module_name_are_told(tmp_path: Path) -> None:
    root = write_tree(tmp_path, PACKAGES)
    (root / "apps/a/tests/__init__.py").unlink()
    (root / "apps/b/tests/__init__.py").unlink()
    report = tests.check(root)
    assert found(report) == [("duplicate_test_module", "apps/b/tests/test_x.py")]
    assert report.issues[0].message == "imports as test_x, and so does apps/a/tests/test_x.py"


@pytest.mark.behaviour("lemon_core.43")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TEST + "\n\nasync def test_one() -> None: ...\n", 4),
        ("class TestA:\n    def test_x(self): ...\n    def test_x(self): ...\n", 3),
        ("class TestA:\n    pass\nclass TestA:\n    pass\n", 3),
    ],
)
def test_one_name_for_two_tests_is_told(tmp_path: Path, text: str, line: int) -> None:
    root = write_tree(tmp_path, {"apps/a/tests/test_y.py": text})
    assert found(tests.check(root)) == [("duplicate_test", f"apps/a/tests/test_y.py:{line}")]


def test_one_name_in_two_classes_is_fine(tmp_path: Path) -> None:
    text = "class TestA:\n    def test_x(self): ...\nclass TestB:\n    def test_x(self): ...\n"
    assert tests.check(write_tree(tmp_path, {"tests/test_y.py": text})).ok


@pytest.mark.parametrize(
    "folder", [".git", "node_modules", "bazel-out", "bazel-main", ".venv", "tmp", "build"]
)
def test_foreign_folders_are_left_out(tmp_path: Path, folder: str) -> None:
    root = write_tree(tmp_path, {"test_x.py": TEST, f"{folder}/sub/test_x.py": TEST})
    assert tests.check(root).ok


def test_a_folder_named_build_that_is_a_package_is_looked_at(tmp_path: Path) -> None:
    files = {"test_x.py": TEST, "tools/build/BUILD.bazel": "", "tools/build/test_x.py": TEST}
    assert found(tests.check(write_tree(tmp_path, files))) == [
        ("duplicate_test_module", "tools/build/test_x.py")
    ]


def test_symlinks_are_left_out(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"real/test_x.py": TEST})
    (root / "linked").symlink_to(root / "real")
    (root / "test_x.py").symlink_to(root / "real/test_x.py")
    assert tests.check(root).ok


def test_a_test_file_that_does_not_parse_is_told(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"test_x.py": "x = 1\ndef f(:\n"})
    assert found(tests.check(root)) == [("source_parse_error", "test_x.py:2")]
