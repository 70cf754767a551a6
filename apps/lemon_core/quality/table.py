"""The generated dependency table of `docs/architecture_boundaries.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from lemon_core.quality.build_files import read_app
from lemon_core.quality.policy import ArchitecturePolicy, PolicyError
from lemon_core.quality.report import CheckReport, Issue
from lemon_core.quality.tree import app_names

NAME = "architecture_docs"
DOC_PATH = "docs/architecture_boundaries.md"
START = "<!-- architecture_policy:start -->"
END = "<!-- architecture_policy:end -->"
UPDATE_HINT = "run `bazel run //docs:update`"

Edges = Mapping[str, Iterable[str]]


class MarkersMissing(Exception):
    """The document does not have the start marker and, after it, the end marker, once each."""

    code = "missing_architecture_doc_markers"

    def __init__(self) -> None:
        super().__init__(f"the lines {START} and {END} must be there once, in this order")


def check(root: Path) -> CheckReport:
    """Compare the table in the document with the policy and the parsed BUILD files."""
    try:
        policy = ArchitecturePolicy.load(root)
    except PolicyError as exc:
        return CheckReport.of(NAME, [Issue(exc.code, exc.reason, path=exc.path)])
    return check_table(root, render(policy, actual_edges(root)))


def check_table(root: Path, table: str) -> CheckReport:
    """Compare the table in the document with `table`."""
    document = root / DOC_PATH
    if not document.is_file():
        issue = Issue(MarkersMissing.code, "the document is missing", path=DOC_PATH)
        return CheckReport.of(NAME, [issue])
    text = document.read_text("utf-8")
    try:
        fresh = replace(text, table)
    except MarkersMissing as exc:
        return CheckReport.of(NAME, [Issue(exc.code, str(exc), path=DOC_PATH)])
    if fresh == text:
        return CheckReport(NAME)
    line = _first_difference(text, fresh)
    message = f"the generated table is stale or edited by hand; {UPDATE_HINT}"
    return CheckReport.of(
        NAME, [Issue("stale_architecture_doc", message, path=f"{DOC_PATH}:{line}")]
    )


def update(root: Path, table: str) -> bool:
    """Write `table` into the document; whether it changed. Raises MarkersMissing."""
    document = root / DOC_PATH
    text = document.read_text("utf-8")
    fresh = replace(text, table)
    if fresh != text:
        document.write_text(fresh, "utf-8")
    return fresh != text


def actual_edges(root: Path) -> dict[str, frozenset[str]]:
    """App to app, from the parsed BUILD files."""
    return {app: read_app(root, app).edges(app) for app in app_names(root)}


def render(policy: ArchitecturePolicy, actual: Edges) -> str:
    """The Markdown table: one row for each app that is there or permitted, sorted."""
    lines = ["| App | Actual | Allowed | Reference-only |", "|---|---|---|---|"]
    for app in sorted({*policy.allowed, *actual}):
        cells = (
            actual.get(app, ()),
            policy.allowed.get(app, ()),
            policy.reference_only.get(app, ()),
        )
        lines.append(f"| {app} | " + " | ".join(_cell(names) for names in cells) + " |")
    return "\n".join(lines) + "\n"


def replace(text: str, table: str) -> str:
    """The document with `table` between its markers. Raises MarkersMissing."""
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise MarkersMissing
    before, rest = text.split(START)
    after = rest.split(END)[1]
    return f"{before}{START}\n\n{table}\n{END}{after}"


def _cell(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"


def _first_difference(text: str, fresh: str) -> int:
    old, new = text.splitlines(), fresh.splitlines()
    for number, (left, right) in enumerate(zip(old, new, strict=False), start=1):
        if left != right:
            return number
    return min(len(old), len(new)) + 1
