"""What a look at one part of the installation found, and the report over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["pass", "warn", "fail", "skip"]
Overall = Literal["pass", "warn", "fail"]

STATUSES: Final[tuple[Status, ...]] = ("pass", "warn", "fail", "skip")
_MARKS: Final[dict[Status, str]] = {"pass": "ok", "warn": "warn", "fail": "fail", "skip": "skip"}
_COLOURS: Final[dict[Status, str]] = {"pass": "32", "warn": "33", "fail": "31", "skip": "2"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check: what is so, and what to do about it."""

    status: Status
    message: str
    remediation: str | None = None


def passed(message: str) -> Finding:
    """All is well."""
    return Finding("pass", message)


def warned(message: str, remediation: str | None = None) -> Finding:
    """Lemon works, but not as well as it could."""
    return Finding("warn", message, remediation)


def failed(message: str, remediation: str | None = None) -> Finding:
    """Something does not work before this is mended."""
    return Finding("fail", message, remediation)


def skipped(message: str) -> Finding:
    """There was nothing to look at."""
    return Finding("skip", message)


@dataclass(frozen=True, slots=True)
class Check:
    """A finding under the name of its check."""

    name: str
    status: Status
    message: str
    remediation: str | None = None

    @classmethod
    def of(cls, name: str, finding: Finding) -> Check:
        """`finding` as the result of the check called `name`."""
        return cls(name, finding.status, finding.message, finding.remediation)

    def as_dict(self) -> dict[str, object]:
        """The check as JSON types."""
        return {
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "remediation": self.remediation,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, in the order in which they ran."""

    checks: tuple[Check, ...]

    @property
    def counts(self) -> dict[Status, int]:
        """How many checks ended how."""
        counted = Counter(check.status for check in self.checks)
        return {status: counted[status] for status in STATUSES}

    @property
    def overall(self) -> Overall:
        """The worst of them: `fail` before `warn` before `pass`."""
        counts = self.counts
        return "fail" if counts["fail"] else "warn" if counts["warn"] else "pass"

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.overall != "fail"

    def as_dict(self) -> dict[str, object]:
        """The report as JSON types."""
        return {
            "overall": self.overall,
            "summary": dict(self.counts),
            "checks": [check.as_dict() for check in self.checks],
        }

    def render(self, *, verbose: bool = False, colours: bool = False) -> str:
        """Text for people: what needs attention (everything with `verbose`), then the counts."""
        shown = [c for c in self.checks if verbose or c.status in ("warn", "fail")]
        width = max((len(check.name) for check in shown), default=0)
        lines = [line for check in shown for line in _lines(check, width, colours)]
        return "\n".join([*lines, *([""] if lines else []), self._summary(verbose=verbose)])

    def _summary(self, *, verbose: bool) -> str:
        counts = self.counts
        told = f"{counts['pass']} ok, {_some(counts['warn'], 'warning')}, {counts['fail']} failed"
        told += f", {counts['skip']} skipped"
        if self.overall == "pass":
            told = f"All is well: {told}"
        return told if verbose else f"{told} (-v shows every check)"


def _lines(check: Check, width: int, colours: bool) -> Iterable[str]:
    mark = f"[{_MARKS[check.status]}]"
    # Padded before the colour: its codes take no room on the screen.
    padded = f"{mark:<6}"
    first, *rest = check.message.splitlines() or [""]
    yield f"{_coloured(padded, check.status, colours)} {check.name:<{width}}  {first}"
    indent = " " * (width + 9)
    yield from (f"{indent}{line}" for line in rest)
    if check.remediation:
        for number, line in enumerate(check.remediation.splitlines()):
            yield f"{indent}{'   ' if number else '-> '}{line}"


def _coloured(text: str, status: Status, colours: bool) -> str:
    return f"\x1b[{_COLOURS[status]}m{text}\x1b[0m" if colours else text


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
