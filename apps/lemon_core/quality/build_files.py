"""App edges out of BUILD files, parsed and never executed.

Starlark's syntax is a subset of Python's, so `ast` reads it. Every value of `deps` and `test_deps`
in the file counts, through list concatenation, `select`, names bound in the same file and helper
calls around lists. What cannot be read is reported: a hidden edge is worse than a loud one.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lemon_core.quality.tree import APPS, BUILD_NAMES, walk

_LABEL = re.compile(r"^(?:@[^/]*)?//apps/(?P<app>\w+)(?P<sub>/[^:]*)?(?::(?P<target>.+))?$")
_KINDS = ("deps", "test_deps")


@dataclass(frozen=True, slots=True, order=True)
class AppLabel:
    """A label below `//apps`; `part` is empty for the app's main library."""

    app: str
    part: str = ""

    @classmethod
    def parse(cls, label: str) -> AppLabel | None:
        """The app a label points at, None for a label outside `//apps`."""
        match = _LABEL.match(label)
        if match is None:
            return None
        app, target = match["app"], match["target"] or ""
        part = (match["sub"] or "").strip("/") or ("" if target == app else target)
        return cls(app, part)

    def __str__(self) -> str:
        return f"//{APPS}/{self.app}" + (f":{self.part}" if self.part else "")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A deps expression whose value the parser cannot know."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class AppDeps:
    """The app labels that one app's BUILD files name, and what could not be read."""

    deps: frozenset[AppLabel] = frozenset()
    test_deps: frozenset[AppLabel] = frozenset()
    unreadable: tuple[Unreadable, ...] = ()

    def edges(self, app: str) -> frozenset[str]:
        """Other apps that `app` depends on; a label of a part is an edge to its app."""
        return frozenset(label.app for label in self.deps | self.test_deps) - {app}


def read_app(root: Path, app: str) -> AppDeps:
    """Edges from all BUILD files of one app (nested ones too)."""
    found: dict[str, set[AppLabel]] = {kind: set() for kind in _KINDS}
    unreadable: list[Unreadable] = []
    for path in walk(root, f"{APPS}/{app}"):
        if path.name in BUILD_NAMES:
            reader = _Reader(str(path))
            for kind, labels in reader.read((root / path).read_text("utf-8")):
                found[kind].update(labels)
            unreadable.extend(reader.unreadable)
    return AppDeps(frozenset(found["deps"]), frozenset(found["test_deps"]), tuple(unreadable))


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._names: Mapping[str, list[ast.expr]] = {}
        self._resolving: set[str] = set()
        self.unreadable: list[Unreadable] = []

    def read(self, text: str) -> Iterator[tuple[str, list[AppLabel]]]:
        try:
            tree = ast.parse(text)
        except SyntaxError as exc:
            self._refuse(exc.lineno or 1, f"the file does not parse: {exc.msg}")
            return
        self._names = _bindings(tree)
        for node in ast.walk(tree):
            for kind, value in self._attributes(node):
                labels = (AppLabel.parse(text) for text in self._strings(value))
                yield kind, [label for label in labels if label is not None]

    def _attributes(self, node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
        """`deps = …` of a call, and `"deps": …` of a dict."""
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in _KINDS:
                    yield keyword.arg, keyword.value
                elif keyword.arg is None and not self._is_literal_dict(keyword.value):
                    self._refuse(keyword.value.lineno, "`**` may hide deps")
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in _KINDS:
                    yield str(key.value), value

    def _is_literal_dict(self, node: ast.expr) -> bool:
        # The walk over the whole file meets a literal dict, and a call of dict(), by itself.
        return all(
            isinstance(value, ast.Dict)
            or (isinstance(value, ast.Call) and _function(value) == "dict")
            for value in self._values(node)
        )

    def _strings(self, node: ast.expr) -> Iterator[str]:
        """Every string that the expression may evaluate to a list of."""
        text = self._text(node)
        if text is not None:
            yield text
            return
        match node:
            case ast.Constant():
                return
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                yield from self._all(items)
            case ast.Starred(value=value):
                yield from self._strings(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield from self._all([left, right])
            case ast.IfExp(body=body, orelse=orelse):
                yield from self._all([body, orelse])
            case ast.Dict(values=values):
                yield from self._all(values)
            case ast.Name(id=name):
                yield from self._bound(node, name)
            case ast.Call():
                yield from self._call(node)
            case _:
                self._refuse(node.lineno, f"cannot read `{ast.unparse(node)}`")

    def _all(self, nodes: Iterable[ast.expr]) -> Iterator[str]:
        for node in nodes:
            yield from self._strings(node)

    def _bound(self, node: ast.expr, name: str) -> Iterator[str]:
        if name not in self._names or name in self._resolving:
            self._refuse(node.lineno, f"`{name}` is not bound to a literal in this file")
            return
        self._resolving.add(name)
        yield from self._all(self._names[name])
        self._resolving.discard(name)

    def _call(self, node: ast.Call) -> Iterator[str]:
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not any(self._holds_list(argument) for argument in arguments):
            self._refuse(node.lineno, f"`{ast.unparse(node)}` shows no list")
            return
        yield from self._all(arguments)

    def _holds_list(self, node: ast.expr) -> bool:
        match node:
            case ast.List() | ast.Tuple() | ast.Dict() | ast.Set():
                return True
            case ast.BinOp(left=left, right=right):
                return self._holds_list(left) or self._holds_list(right)
            case ast.Call(args=arguments):
                return any(self._holds_list(argument) for argument in arguments)
            case ast.Name(id=name) if name in self._names and name not in self._resolving:
                self._resolving.add(name)
                held = any(self._holds_list(value) for value in self._names[name])
                self._resolving.discard(name)
                return held
        return False

    def _values(self, node: ast.expr) -> list[ast.expr]:
        """The node, or what the file binds to it when it is a name."""
        return self._names.get(node.id, [node]) if isinstance(node, ast.Name) else [node]

    def _text(self, node: ast.expr) -> str | None:
        """The value of a string expression: a literal, a sum of such, a bound name, `Label(…)`."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                first, second = self._text(left), self._text(right)
                return None if first is None or second is None else first + second
            case ast.Name(id=name):
                match self._names.get(name):
                    case [ast.Constant(value=str(text))]:
                        return text
            case ast.Call(args=[argument]) if _function(node) == "Label":
                return self._text(argument)
        return None

    def _refuse(self, line: int, reason: str) -> None:
        self.unreadable.append(Unreadable(f"{self._path}:{line}", reason))


def _bindings(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Every value that a top-level name is ever given: a superset is the safe reading."""
    names: dict[str, list[ast.expr]] = defaultdict(list)
    for node in tree.body:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        names[target.id].append(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                names[name].append(value)
    return names


def _function(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""
