"""The recorded outcomes, to look at: the file is opened for reading alone, and need not exist."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from lemon_core.store.sqlite_file import reading
from lemon_router.feedback_report import Aggregate, Counted, aggregate, best_model, by_key, by_model

_COUNT: Final = (
    "SELECT fingerprint_key, outcome, count(*), count(duration_ms), ifnull(sum(duration_ms), 0)"
    " FROM routing_feedback WHERE fingerprint_key LIKE ? ESCAPE '\\' AND recorded_at_ms >= ?"
    " GROUP BY fingerprint_key, outcome"
)
_EXISTS: Final = "SELECT 1 FROM sqlite_master WHERE name='routing_feedback'"
_SPAN: Final = (
    "SELECT count(*), count(DISTINCT fingerprint_key), min(recorded_at_ms), max(recorded_at_ms)"
    " FROM routing_feedback"
)


class Span(NamedTuple):
    """How many outcomes there are, of how many keys, and over which time."""

    run_count: int = 0
    key_count: int = 0
    oldest_at_ms: int | None = None
    newest_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FeedbackView:
    """Answers from the file at `path`; its methods raise `StoreError`."""

    path: Path
    min_sample_size: int

    def span(self) -> Span:
        """How much there is."""
        rows = self._ask(_SPAN)
        return Span(*rows[0]) if rows else Span()

    def aggregates(self, *, since_ms: int = 0) -> list[Aggregate]:
        """Every key with what is known of it since then."""
        return by_key(self._counted("", since_ms), min_sample_size=self.min_sample_size)

    def aggregate(self, key: str) -> Aggregate | None:
        """What is known of one key; None for one without outcomes."""
        rows = [row for row in self._counted(key) if row.fingerprint_key == key]
        return aggregate(key, rows, min_sample_size=self.min_sample_size) if rows else None

    def models(self, context: str) -> list[Aggregate]:
        """What is known of each model in a context (`family|toolset|workspace`), the best first."""
        return by_model(context, self._counted(f"{context}|"), min_sample_size=self.min_sample_size)

    def best_model_for_context(self, context: str) -> str | None:
        """The model with the highest rate of success, of those that enough is known of."""
        return best_model(self.models(context))

    def _counted(self, prefix: str, since_ms: int = 0) -> list[Counted]:
        return [Counted(*row) for row in self._ask(_COUNT, f"{_literal(prefix)}%", since_ms)]

    def _ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows; none without a file, or with one that was only just made."""
        if not self.path.exists():
            return []
        with reading(self.path) as connection:
            if connection.execute(_EXISTS).fetchone() is None:
                return []
            return connection.execute(sql, values).fetchall()


def _literal(text: str) -> str:
    """`text` as a pattern of `LIKE` that matches nothing else."""
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return text
