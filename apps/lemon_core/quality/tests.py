"""The duplicate-test guard: no two tests hide behind one name.

Two files that import under one module name, or two tests of one name in a module or class: the
second silently replaces the first, and nobody sees that a test is gone.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from lemon_core.quality.report import CheckReport, Issue
from lemon_core.quality.tree import walk

NAME = "duplicate_tests"


def check(root: Path) -> CheckReport:
    """Look through every test file below `root`."""
    files = [path for path in walk(root) if is_test_file(path)]
    issues = list(_same_module(root, files))
    for path in files:
        issues.extend(_same_test(root, path))
    return CheckReport.of(NAME, issues)


def is_test_file(path: Path) -> bool:
    """Whether pytest collects this file by its name."""
    return path.suffix == ".py" and (path.stem.startswith("test_") or path.stem.endswith("_test"))


def module_name(root: Path, path: Path) -> str:
    """The name a test file imports under: its path below the lowest folder without `__init__.py`.

    `apps/` is the import root, so it has none.
    """
    parts, folder = [path.stem], path.parent
    while folder.parts and (root / folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _same_module(root: Path, files: list[Path]) -> Iterator[Issue]:
    by_module: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        by_module[module_name(root, path)].append(path)
    for module, paths in by_module.items():
        for path in paths[1:]:
            message = f"imports as {module}, and so does {paths[0]}"
            yield Issue("duplicate_test_module", message, path=str(path))


def _same_test(root: Path, path: Path) -> Iterator[Issue]:
    try:
        tree = ast.parse((root / path).read_text("utf-8"))
    except (SyntaxError, ValueError) as exc:
        line = getattr(exc, "lineno", None) or 1
        yield Issue("source_parse_error", str(exc), path=f"{path}:{line}")
        return
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.ClassDef):
            yield from _twice_in(scope, path)


def _twice_in(scope: ast.Module | ast.ClassDef, path: Path) -> Iterator[Issue]:
    first_line: dict[str, int] = {}
    for node in scope.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not node.name.startswith(("test", "Test")):
            continue
        if node.name in first_line:
            message = f"{node.name} replaces the one of line {first_line[node.name]}"
            yield Issue("duplicate_test", message, path=f"{path}:{node.lineno}")
        first_line.setdefault(node.name, node.lineno)
