"""Module names out of sources. Specification lemon_core 16, `forbidden_namespace_reference`."""

from __future__ import annotations

import pytest

from lemon_core.quality.imports import Reference, references

SOURCE = '''\
"""import lemon_text: a docstring is no import."""
import os, lemon_a.inner as inner
from lemon_b import one, two
from . import sibling
from .lemon_c import three
if TYPE_CHECKING:
    from lemon_d.types import Four
def later():
    import lemon_e
    importlib.import_module("lemon_f.app")
    import_module("lemon_g", package=None)
    importlib.import_module(".inner", "lemon_h")
    importlib.import_module(name)
    print("lemon_i")
'''


def test_every_absolute_import_is_found_with_its_line() -> None:
    assert sorted(references(SOURCE), key=lambda ref: (ref.line, ref.module)) == [
        Reference("lemon_a.inner", 2),
        Reference("os", 2),
        Reference("lemon_b.one", 3),
        Reference("lemon_b.two", 3),
        Reference("lemon_d.types.Four", 7),
        Reference("lemon_e", 9),
        Reference("lemon_f.app", 10),
        Reference("lemon_g", 11),
    ]


def test_a_source_that_does_not_parse_raises() -> None:
    with pytest.raises(SyntaxError):
        references("def broken(:")
