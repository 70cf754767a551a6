"""The dependency policy, read from `tools/architecture/policy.bzl`.

The file holds plain dict literals, so Starlark loads the very text that is parsed here.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

POLICY_PATH = "tools/architecture/policy.bzl"

Rows = Mapping[str, frozenset[str]]


class PolicyError(Exception):
    """The policy file is missing or is not a set of plain dict literals."""

    code = "policy_unreadable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


@dataclass(frozen=True, slots=True)
class ArchitecturePolicy:
    """Which app may depend on which, now (`allowed`) and in the end (`final`).

    `reference_only` lists what an app's source may name without a build edge; it never permits one.
    """

    allowed: Rows
    final: Rows
    reference_only: Rows = field(default_factory=dict)
    final_reference_only: Rows = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> ArchitecturePolicy:
        """Read the policy of the repository at `root`. Raises PolicyError."""
        try:
            tree = ast.parse((root / POLICY_PATH).read_text("utf-8"))
        except OSError as exc:
            raise PolicyError(POLICY_PATH, f"cannot be read: {exc.strerror}") from exc
        except SyntaxError as exc:
            raise PolicyError(f"{POLICY_PATH}:{exc.lineno}", exc.msg) from exc
        return cls(
            allowed=_rows(tree, "ALLOWED"),
            final=_rows(tree, "FINAL"),
            reference_only=_rows(tree, "REFERENCE_ONLY"),
            final_reference_only=_rows(tree, "FINAL_REFERENCE_ONLY"),
        )

    @property
    def app_names(self) -> frozenset[str]:
        """Every name that is an app now or will be one."""
        return frozenset(self.allowed) | frozenset(self.final)

    def drift(self) -> list[tuple[str, str]]:
        """Edges of `final` that `allowed` does not have yet, sorted."""
        return sorted(
            (app, dep)
            for app, row in self.final.items()
            for dep in row - self.allowed.get(app, frozenset())
        )


def _rows(tree: ast.Module, name: str) -> dict[str, frozenset[str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return _literal_rows(node, name)
    raise PolicyError(POLICY_PATH, f"{name} is not defined")


def _literal_rows(node: ast.Assign, name: str) -> dict[str, frozenset[str]]:
    place = f"{POLICY_PATH}:{node.lineno}"
    try:
        value: object = ast.literal_eval(node.value)
    except ValueError as exc:
        raise PolicyError(place, f"{name} is not a plain literal") from exc
    if not isinstance(value, dict):
        raise PolicyError(place, f"{name} is not a dict")
    rows: dict[str, frozenset[str]] = {}
    for app, deps in value.items():
        if not isinstance(app, str) or not isinstance(deps, list):
            raise PolicyError(place, f"{name} has a row that is not `app: [deps]`: {app!r}")
        if not all(isinstance(dep, str) for dep in deps):
            raise PolicyError(place, f"{name}[{app!r}] holds something that is not a name")
        rows[app] = frozenset(deps)
    return rows
