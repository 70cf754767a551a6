"""Repository quality: the rules that the build and `lemon quality` run.

Each check is a function `check(root) -> CheckReport`. This package imports nothing else of core, so
the build can run it alone.
"""

from lemon_core.quality.policy import ArchitecturePolicy, PolicyError
from lemon_core.quality.report import CheckReport, Issue

__all__ = ["ArchitecturePolicy", "CheckReport", "Issue", "PolicyError"]
