"""The tokens and the price of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lemon_ai import Usage

_COUNTS = ("input", "output", "cache_read", "cache_write", "total_tokens")


@dataclass(slots=True)
class UsageSum:
    """Adds up what the model calls of a run reported; calls without a report count as nothing."""

    counts: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    context_tokens: int = 0

    def add(self, usage: Usage | None) -> None:
        """Add one answer of the conversation."""
        if usage is None:
            return
        self.add_other(usage)
        self.context_tokens = usage.input + usage.cache_read + usage.cache_write

    def add_other(self, usage: Usage) -> None:
        """Add a model call that says nothing about the size of the conversation."""
        for name in _COUNTS:
            self.counts[name] = self.counts.get(name, 0) + getattr(usage, name)
        if usage.cost is not None:
            self.cost_usd = (self.cost_usd or 0.0) + usage.cost.total

    def add_sums(self, sums: Mapping[str, object]) -> None:
        """Add the `value` of another run."""
        for name in _COUNTS:
            count = sums.get(name)
            if isinstance(count, int):
                self.counts[name] = self.counts.get(name, 0) + count
        cost = sums.get("cost_usd")
        if isinstance(cost, int | float):
            self.cost_usd = (self.cost_usd or 0.0) + cost

    def value(self) -> dict[str, object] | None:
        """The sums; `context_tokens` is of the last call alone. None when nothing was reported."""
        if not self.counts:
            return None
        cost = {} if self.cost_usd is None else {"cost_usd": self.cost_usd}
        return {**self.counts, **cost, "context_tokens": self.context_tokens}
