"""The `<app>.edges.json` files, which the build writes from the lists it gives to `deps`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lemon_core.quality.build_files import AppDeps, AppLabel, read_app
from lemon_core.quality.report import CheckReport, Issue
from lemon_core.quality.tree import APPS

NAME = "declared_edges"


@dataclass(frozen=True, slots=True)
class DeclaredEdges:
    """What the build says about one app."""

    app: str
    deps: frozenset[AppLabel]
    test_deps: frozenset[AppLabel]

    @classmethod
    def load(cls, path: Path) -> DeclaredEdges:
        """Read one edges file of the build."""
        data = json.loads(path.read_text("utf-8"))
        return cls(data["app"], _labels(data["deps"]), _labels(data["test_deps"]))

    def edges(self) -> frozenset[str]:
        """The apps that this app depends on."""
        return AppDeps(self.deps, self.test_deps).edges(self.app)


def check(root: Path, files: Iterable[Path]) -> CheckReport:
    """Compare what the build declares with what the BUILD parser reads, list by list."""
    issues: list[Issue] = []
    for declared in map(DeclaredEdges.load, files):
        parsed = read_app(root, declared.app)
        for kind, built, read in (
            ("deps", declared.deps, parsed.deps),
            ("test_deps", declared.test_deps, parsed.test_deps),
        ):
            for label in sorted(built ^ read):
                where = "the build has" if label in built else "the BUILD file shows"
                message = f"only {where} {label} in {kind}"
                path = f"{APPS}/{declared.app}/BUILD.bazel"
                issues.append(Issue("edges_mismatch", message, declared.app, path))
    return CheckReport.of(NAME, issues)


def _labels(texts: Iterable[str]) -> frozenset[AppLabel]:
    parsed = (AppLabel.parse(text) for text in texts)
    return frozenset(label for label in parsed if label is not None)
