"""Every check of `lemon quality`, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from lemon_core.quality import architecture, behaviours, docs, table, tests
from lemon_core.quality.report import CheckReport

CHECKS: Mapping[str, Callable[[Path], CheckReport]] = MappingProxyType(
    {
        architecture.NAME: architecture.check,
        table.NAME: table.check,
        behaviours.NAME: behaviours.check,
        docs.NAME: docs.check,
        tests.NAME: tests.check,
    }
)


def check_all(root: Path) -> list[CheckReport]:
    """Run every check over the repository at `root`."""
    return [check(root) for check in CHECKS.values()]
