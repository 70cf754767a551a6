"""Small repository trees for the quality tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lemon_core.quality import CheckReport
from lemon_core.quality.policy import POLICY_PATH

Rows = Mapping[str, list[str]]


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write `files` (relative path to text) below `root` and hand `root` back."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def policy_text(
    allowed: Rows,
    final: Rows | None = None,
    reference_only: Rows | None = None,
    final_reference_only: Rows | None = None,
) -> str:
    """A policy file; the final rows are the present ones unless they are given."""
    exceptions = dict(reference_only or {})
    return (
        f"ALLOWED = {dict(allowed)!r}\n"
        f"FINAL = {dict(allowed if final is None else final)!r}\n"
        f"REFERENCE_ONLY = {exceptions!r}\n"
        f"FINAL_REFERENCE_ONLY = {dict(final_reference_only or exceptions)!r}\n"
    )


def app_text(name: str, deps: list[str], test_deps: list[str] | None = None) -> str:
    """A BUILD file with one `lemon_app`."""
    return f"lemon_app(name = {name!r}, deps = {deps!r}, test_deps = {test_deps or []!r})\n"


def clean_tree(root: Path) -> Path:
    """Two apps: `lemon_top` depends on `lemon_base` and imports it. Nothing is wrong with it."""
    return write_tree(
        root,
        {
            POLICY_PATH: policy_text({"lemon_base": [], "lemon_top": ["lemon_base"]}),
            "apps/lemon_base/BUILD.bazel": app_text("lemon_base", []),
            "apps/lemon_base/__init__.py": "",
            "apps/lemon_top/BUILD.bazel": app_text("lemon_top", ["//apps/lemon_base"]),
            "apps/lemon_top/__init__.py": "",
            "apps/lemon_top/use.py": "import os\n\nfrom lemon_base import thing\n",
        },
    )


def found(report: CheckReport) -> list[tuple[str, str | None]]:
    """Code and place of each issue, in the report's order."""
    return [(issue.code, issue.path) for issue in report.issues]
