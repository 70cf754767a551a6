"""This repository passes its own checks. Specification lemon_core 18, behaviour 43."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lemon_core.quality.all_checks import CHECKS, check_all
from lemon_core.quality.policy import POLICY_PATH
from lemon_core.tests.quality.trees import clean_tree


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository: the checkout, or in Bazel a real copy of its tree of symlinks."""
    found = next(folder for folder in Path(__file__).parents if (folder / POLICY_PATH).is_file())
    if "TEST_SRCDIR" not in os.environ:
        return found
    return shutil.copytree(found, tmp_path_factory.mktemp("repository") / "root")


@pytest.mark.behaviour("lemon_core.43")
@pytest.mark.parametrize("name", CHECKS)
def test_the_repository_is_clean(root: Path, name: str) -> None:
    issues = CHECKS[name](root).issues
    if issues:
        # Whole and without a traceback: this is what a developer reads.
        pytest.fail("\n".join(map(str, issues)), pytrace=False)


def test_the_tree_that_is_checked_is_the_repository(root: Path) -> None:
    """An empty tree would be clean as well."""
    for name in ("MODULE.bazel", "apps/lemon_core/BUILD.bazel", "docs/architecture_boundaries.md"):
        assert (root / name).is_file()


def test_all_checks_run_in_one_call(tmp_path: Path) -> None:
    reports = check_all(clean_tree(tmp_path))
    assert [(report.name, report.ok) for report in reports] == [
        ("architecture", True),
        ("architecture_docs", False),
        ("behaviours", True),
        ("docs_links", True),
        ("duplicate_tests", True),
    ]
