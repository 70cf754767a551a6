"""Whether a label that a document names exists, as far as the BUILD files tell without Bazel."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_LABEL = re.compile(r"//[\w./+-]*(?::[\w./+=@~-]+)?")
_EVERYTHING = ("all", "all-targets", "*")


def labels_in(word: str) -> list[str]:
    """The labels in one word of a command line: usually itself, several in a query."""
    return _LABEL.findall(word)


def missing(root: Path, label: str) -> str | None:
    """Why there is nothing at `label` in the workspace at `root`; None when there is."""
    package, _, target = label.removeprefix("//").partition(":")
    if package.endswith("..."):
        folder = root / package.removesuffix("...").rstrip("/")
        if next(_build_files(folder), None) is None:
            return f"{label}: no package below {folder.relative_to(root)}/"
        return None
    folder = root / package
    build = next((folder / name for name in _BUILD_NAMES if (folder / name).is_file()), None)
    if build is None:
        return f"{label}: {package or '.'}/ has no BUILD.bazel"
    target = target or folder.name
    if target in _EVERYTHING or target in set(_targets(build)) or (folder / target).is_file():
        return None
    return f"{label}: {build.relative_to(root)} has no target {target}"


_BUILD_NAMES = ("BUILD.bazel", "BUILD")


def _build_files(folder: Path) -> Iterator[Path]:
    for name in _BUILD_NAMES:
        yield from folder.rglob(name)


def _targets(build: Path) -> Iterator[str]:
    """Names in a BUILD file: those written there, and those that our macros add."""
    for node in ast.walk(ast.parse(build.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            rule = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            given = {word.arg: word.value for word in node.keywords if word.arg}
            name = given.get("name")
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value
                yield from _made(rule, name.value)
            if rule in ("lemon_app", "pytest_tests"):
                yield from _test_files(build.parent)
            if rule in ("lemon_app", "workspace_files"):
                yield "files"
            if rule == "lemon_app" and isinstance(parts := given.get("parts"), ast.Dict):
                yield from (str(key.value) for key in parts.keys if isinstance(key, ast.Constant))


def _made(rule: str, name: str) -> tuple[str, ...]:
    """What a macro of tools/build makes beside `name`."""
    match rule:
        case "lemon_app":
            return (f"{name}.edges.json", "imports", "mypy", "ruff")
        case "pytest_tests":
            return (f"{name}.sources",)
        case "py_grpc_library":
            return (f"{name}.stubs", f"{name}.descriptors")
        case _:
            return ()


def _test_files(package: Path) -> Iterator[str]:
    for path in package.rglob("test_*.py"):
        yield str(path.relative_to(package).with_suffix(""))
