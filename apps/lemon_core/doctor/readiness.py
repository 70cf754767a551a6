"""Is Lemon ready? One word, and what stands in the way, made out of a doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lemon_core.doctor.report import Check, Report

ReadinessStatus = Literal["failed", "blocked", "warning", "ready"]
Reason = Literal["broken", "missing", "attention"]

# What only a person can bring. Without it nothing is broken, and little works.
_PREREQUISITES: Final = frozenset({"secrets.master_key", "node_tools.git"})
_REASONS: Final[dict[Reason, ReadinessStatus]] = {
    "broken": "failed",
    "missing": "blocked",
    "attention": "warning",
}
_SENTENCES: Final[dict[ReadinessStatus, str]] = {
    "failed": "Lemon is not ready: something is broken (failed).",
    "blocked": "Lemon is not ready: something is missing (blocked).",
    "warning": "Lemon is ready, with a reservation (warning).",
    "ready": "Lemon is ready.",
}


@dataclass(frozen=True, slots=True)
class Unresolved:
    """One thing that stands in the way, and how."""

    reason: Reason
    check: Check

    def as_dict(self) -> dict[str, object]:
        """It as JSON types."""
        return {
            "check": self.check.name,
            "reason": self.reason,
            "message": self.check.message,
            "next_step": self.check.remediation,
        }


@dataclass(frozen=True, slots=True)
class Readiness:
    """The state of the installation: `unresolved` has the worst first."""

    unresolved: tuple[Unresolved, ...]
    report: Report

    @classmethod
    def of(cls, report: Report) -> Readiness:
        """The readiness that `report` shows."""
        found = [
            Unresolved(reason, check)
            for check in report.checks
            if (reason := _reason(check)) is not None
        ]
        order = list(_REASONS)
        return cls(tuple(sorted(found, key=lambda item: order.index(item.reason))), report)

    @property
    def status(self) -> ReadinessStatus:
        """`failed` before `blocked` before `warning` before `ready`."""
        return _REASONS[self.unresolved[0].reason] if self.unresolved else "ready"

    def as_dict(self, limit: int | None = None) -> dict[str, object]:
        """The readiness as JSON types, with at most `limit` of what is unresolved."""
        return {
            "status": self.status,
            "doctor": {"overall": self.report.overall, "summary": dict(self.report.counts)},
            "unresolved_count": len(self.unresolved),
            "unresolved": [item.as_dict() for item in self.unresolved[:limit]],
        }

    def render(self, limit: int | None = None) -> str:
        """A few lines for people."""
        lines = [_SENTENCES[self.status]]
        for item in self.unresolved[:limit]:
            first, *_ = item.check.message.splitlines() or [""]
            lines.append(f"  {item.reason:<9}  {item.check.name}: {first}")
            if item.check.remediation:
                lines.append(f"  {'':<9}  -> {item.check.remediation}")
        if limit is not None and len(self.unresolved) > limit:
            lines.append(f"  and {len(self.unresolved) - limit} more (--limit)")
        return "\n".join(lines)


def _reason(check: Check) -> Reason | None:
    if check.status == "warn":
        return "attention"
    if check.status != "fail":
        return None
    return "missing" if check.name in _PREREQUISITES else "broken"
