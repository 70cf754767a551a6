"""The architecture check: build edges against the policy, imports against the build edges.

The direct edges of an app are the `//apps/…` labels in the `deps` and `test_deps` of its BUILD
files. They must equal the app's row of ALLOWED in both directions, so that a deleted edge takes its
permission along. Sources may import what `deps` names, or what REFERENCE_ONLY lets them name;
`tests/` and the part `testing` also what `test_deps` names. An exception never permits an edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from lemon_core.quality.build_files import AppDeps, AppLabel, read_app
from lemon_core.quality.imports import Reference, references
from lemon_core.quality.policy import POLICY_PATH, ArchitecturePolicy, PolicyError, Rows
from lemon_core.quality.report import CheckReport, Issue
from lemon_core.quality.tree import APPS, app_files, app_names, is_test_source

NAME = "architecture"


def check(root: Path) -> CheckReport:
    """Check every app of the repository at `root`; target drift comes as notes."""
    try:
        policy = ArchitecturePolicy.load(root)
    except PolicyError as exc:
        return CheckReport.of(NAME, [Issue(exc.code, exc.reason, path=exc.path)])
    present = app_names(root)
    issues = list(_policy_issues(policy, present))
    for app in present:
        declared = read_app(root, app)
        issues.extend(_edge_issues(app, declared, policy))
        issues.extend(_import_issues(root, app, declared, policy))
    return CheckReport.of(NAME, issues, _drift(policy))


def check_imports(root: Path, app: str) -> CheckReport:
    """Check the sources of one app alone: imports, unused deps and files that do not parse."""
    policy = ArchitecturePolicy.load(root)
    declared = read_app(root, app)
    return CheckReport.of(f"{NAME}:{app}", _import_issues(root, app, declared, policy))


@dataclass(frozen=True, slots=True)
class EdgeError:
    """An app or edge that the policy refuses; `dep` is empty when the app itself is at fault."""

    code: str
    dep: str
    message: str


def edge_errors(
    app: str, deps: Sequence[str], test_deps: Sequence[str], allowed: Rows, final: Rows
) -> list[EdgeError]:
    """Compare an app's labels with its policy row, in both directions.

    `tools/architecture/edges.bzl` has the same function for load time; both are tested over the
    cases of `tools/architecture/edge_cases.bzl`.
    """
    labels = (AppLabel.parse(label) for label in (*deps, *test_deps))
    return _compare(app, {label.app for label in labels if label} - {app}, allowed, final)


def _compare(app: str, edges: AbstractSet[str], allowed: Rows, final: Rows) -> list[EdgeError]:
    if app not in allowed:
        return [EdgeError("unknown_app", "", f"{app} has no row in ALLOWED of {POLICY_PATH}")]
    row, errors = allowed[app], []
    if app not in final:
        errors.append(
            EdgeError("outside_final", "", f"{app} is in ALLOWED but has no row in FINAL")
        )
    for dep in sorted(edges - row):
        if dep in allowed:
            reason = (
                f"ALLOWED does not permit the edge {app} -> {dep}; remove it or change the policy"
            )
            errors.append(EdgeError("forbidden_dependency", dep, reason))
        else:
            reason = f"the edge {app} -> {dep} points at no app of ALLOWED"
            errors.append(EdgeError("unknown_app", dep, reason))
    for dep in sorted(row - edges):
        reason = f"ALLOWED permits the edge {app} -> {dep}, which is gone; remove the permission"
        errors.append(EdgeError("stale_dependency_permission", dep, reason))
    for dep in sorted(row - final.get(app, row)):
        errors.append(EdgeError("outside_final", dep, f"FINAL has no edge {app} -> {dep}"))
    return errors


def _edge_issues(app: str, declared: AppDeps, policy: ArchitecturePolicy) -> Iterator[Issue]:
    path = f"{APPS}/{app}/BUILD.bazel"
    for error in _compare(app, declared.edges(app), policy.allowed, policy.final):
        yield Issue(error.code, error.message, app, path)
    for unreadable in declared.unreadable:
        yield Issue("unreadable_deps", unreadable.reason, app, unreadable.path)


def _policy_issues(policy: ArchitecturePolicy, present: Sequence[str]) -> Iterator[Issue]:
    for app in sorted(policy.allowed.keys() - set(present)):
        message = f"ALLOWED has a row for {app}, but {APPS}/{app} has no BUILD file"
        yield Issue("missing_app", message, app, POLICY_PATH)
    for app, row in sorted(policy.reference_only.items()):
        for name in sorted(row - policy.final_reference_only.get(app, frozenset())):
            message = f"FINAL_REFERENCE_ONLY has no exception {app} -> {name}"
            yield Issue("outside_final", message, app, POLICY_PATH)


def _drift(policy: ArchitecturePolicy) -> list[Issue]:
    return [
        Issue("target_dependency_drift", f"FINAL has the edge {app} -> {dep}", app, POLICY_PATH)
        for app, dep in policy.drift()
    ]


def _import_issues(
    root: Path, app: str, declared: AppDeps, policy: ArchitecturePolicy
) -> Iterator[Issue]:
    known = policy.app_names | set(app_names(root))
    used: dict[bool, set[AppLabel]] = {False: set(), True: set()}
    for path in app_files(root, app, ".py"):
        in_test = is_test_source(path)
        try:
            found = references((root / path).read_text("utf-8"))
        except (SyntaxError, ValueError) as exc:
            line = getattr(exc, "lineno", None) or 1
            yield Issue("source_parse_error", str(exc), app, f"{path}:{line}")
            continue
        across = [ref for ref in found if ref.package in known and ref.package != app]
        used[in_test].update(label for ref in across for label in _labels(ref))
        permitted = _permitted(app, declared, policy, in_test)
        for ref in across:
            if ref.package not in permitted:
                yield Issue(
                    "forbidden_namespace_reference", _why(ref, app), app, f"{path}:{ref.line}"
                )
    yield from _unused(app, declared, used)


def _permitted(
    app: str, declared: AppDeps, policy: ArchitecturePolicy, in_test: bool
) -> frozenset[str]:
    labels = declared.deps | declared.test_deps if in_test else declared.deps
    return frozenset(label.app for label in labels) | policy.reference_only.get(app, frozenset())


def _why(ref: Reference, app: str) -> str:
    return (
        f"imports {ref.module}, but {app} has no edge to {ref.package}; "
        f"use a port of lemon_core, or add //{APPS}/{ref.package} to the deps and the policy"
    )


def _labels(ref: Reference) -> tuple[AppLabel, AppLabel]:
    """The labels that a reference uses: the app, and the part should it name one."""
    return AppLabel(ref.package), AppLabel(ref.package, ref.second)


def _unused(app: str, declared: AppDeps, used: Mapping[bool, set[AppLabel]]) -> Iterator[Issue]:
    path = f"{APPS}/{app}/BUILD.bazel"
    for label in sorted(declared.deps - used[False]):
        if label.app == app:
            continue
        hint = "move it to test_deps" if label in used[True] else "remove it"
        yield Issue("unused_dependency", f"no source imports {label} of deps; {hint}", app, path)
    for label in sorted(declared.test_deps - used[True]):
        if label.app != app:
            message = f"no test imports {label} of test_deps; remove it"
            yield Issue("unused_dependency", message, app, path)
