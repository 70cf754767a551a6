"""`docs/gateway_modules.md` names modules that exist, and every module of the gateway."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

GUIDE = "docs/gateway_modules.md"
PACKAGE = Path(__file__).parents[1]
# What every app has in some form, and what no row of an inventory would name.
UNNAMED = {"lemon_gateway.errors", "lemon_gateway.json_values"}


def rows() -> list[list[str]]:
    """The cells of each row of the guide's tables."""
    root = next(folder for folder in Path(__file__).parents if (folder / GUIDE).is_file())
    lines = (root / GUIDE).read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in cells if row[0] != "Original module" and not row[0].startswith("---")]


def modules(cell: str) -> list[str]:
    """The modules that a cell names."""
    return re.findall(r"`(lemon_[\w.]+)`", cell)


def test_every_row_names_a_module_or_says_why_there_is_none() -> None:
    """DESIGN ruling 37."""
    table = rows()
    assert len(table) > 60
    assert len({row[0] for row in table}) == len(table)
    for original, now, _ in table:
        assert modules(now) or re.match(r"gone$|comes with ", now), original


def test_every_module_that_is_named_exists() -> None:
    """DESIGN ruling 37."""
    for _, now, _ in rows():
        for module in modules(now):
            assert find_spec(module) is not None, module


def test_every_module_of_the_gateway_is_named() -> None:
    """The other direction: nothing is there that the guide does not place."""
    named = {module for row in rows() for module in modules(row[1])}
    there = {f"lemon_gateway.{path.stem}" for path in PACKAGE.glob("[a-z]*.py")}
    assert there - named == UNNAMED
