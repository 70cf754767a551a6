"""Which modules a Python source names, found in its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """An absolute module name as a source writes it, with its line.

    `from a import b` gives `a.b`: whether `b` is a module or a name makes no difference here.
    """

    module: str
    line: int

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def second(self) -> str:
        """The name after the package (`rpc` of `lemon_core.rpc.client`), or empty."""
        return self.module.partition(".")[2].partition(".")[0]


def references(source: str) -> list[Reference]:
    """All absolute imports, and `import_module` calls with a literal. Raises SyntaxError."""
    return [found for node in ast.walk(ast.parse(source)) for found in _of(node)]


def _of(node: ast.AST) -> Iterator[Reference]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield Reference(alias.name, node.lineno)
        case ast.ImportFrom(module=str(module), level=0, names=names):
            for alias in names:
                yield Reference(f"{module}.{alias.name}", node.lineno)
        case ast.Call(args=[ast.Constant(value=str(module)), *_]) if _imports_by_name(node.func):
            # A leading dot is relative to the `package` argument and stays inside the app.
            if not module.startswith("."):
                yield Reference(module, node.lineno)


def _imports_by_name(function: ast.expr) -> bool:
    match function:
        case ast.Name(id="import_module" | "__import__"):
            return True
        case ast.Attribute(attr="import_module"):
            return True
    return False
