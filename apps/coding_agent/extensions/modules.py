"""Importing the modules of extensions, afresh each time.

A module is read from its source, without byte code on the disk: a change within one second counts,
and nothing is written into the user's folders.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

PREFIX: Final = "lemon_extension_"


class _FromSource(SourceFileLoader):
    """Reads and compiles the file each time."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


class _SubmoduleFinder:
    """Finds what an extension imports of itself, with the same loader."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{self._package}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _FromSource(name, spec.loader.path)
        return spec


def imported(name: str, path: Path) -> ModuleType:
    """The module in a file or a package's folder, under this name; raises what it raises."""
    is_package = path.suffix != ".py"
    file = path / "__init__.py" if is_package else path
    spec = spec_from_file_location(
        name,
        file,
        loader=_FromSource(name, str(file)),
        submodule_search_locations=[str(path)] if is_package else None,
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    with _found_fresh(name):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _found_fresh(package: str) -> Iterator[None]:
    """The package's own modules are read from their sources for the block."""
    finder: Any = _SubmoduleFinder(package)
    importlib.invalidate_caches()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def module_name(path: Path) -> str:
    """The name under which what lies at `path` is imported; each path has its own."""
    digest = hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{PREFIX}{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}_{digest}"


def purge(module: str) -> None:
    """Forget a module and those below it."""
    for name in [n for n in tuple(sys.modules) if n == module or n.startswith(f"{module}.")]:
        sys.modules.pop(name, None)
