"""What a repository check hands back: issues that fail it and notes that do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding. `path` is relative to the repository root and may end in `:line`."""

    code: str
    message: str
    app: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = self.path or self.app or "repository"
        return f"{place}: {self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of one check over one repository tree.

    `issues` fail the check; `notes` (such as target drift) are told and never fail it.
    """

    name: str
    issues: tuple[Issue, ...] = ()
    notes: tuple[Issue, ...] = ()

    @classmethod
    def of(cls, name: str, issues: Iterable[Issue], notes: Iterable[Issue] = ()) -> CheckReport:
        """Build a report with issues in a stable order: by place, then code, then text."""
        return cls(name, tuple(sorted(issues, key=_order)), tuple(sorted(notes, key=_order)))

    @property
    def ok(self) -> bool:
        return not self.issues

    def render(self) -> str:
        """One line per issue and note, ready to print; empty when there is nothing to say."""
        lines = [str(issue) for issue in self.issues]
        lines.extend(f"note: {note}" for note in self.notes)
        return "\n".join(lines)


def _order(issue: Issue) -> tuple[str, int, str, str]:
    path, _, line = (issue.path or "").partition(":")
    return (path or issue.app or "", int(line) if line.isdigit() else 0, issue.code, issue.message)
