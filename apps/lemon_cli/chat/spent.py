"""Tokens, cost and context of turns, and how they read in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Spent:
    """What the turns of this chat have used; `context_tokens` is of the last model call."""

    turns: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    cost_usd: float | None = None
    context_tokens: int | None = None

    def add(self, usage: Mapping[str, object] | None) -> None:
        """Count one turn."""
        self.turns += 1
        facts = usage or {}
        self.input += _count(facts, "input") + _count(facts, "cache_write")
        self.cached += _count(facts, "cache_read")
        self.output += _count(facts, "output")
        cost = facts.get("cost_usd")
        if isinstance(cost, int | float):
            self.cost_usd = (self.cost_usd or 0.0) + cost
        if context := _count(facts, "context_tokens"):
            self.context_tokens = context


def _count(facts: Mapping[str, object], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) else 0


def summary(
    usage: Mapping[str, object] | None,
    *,
    model: str | None,
    window: int | None,
    duration_ms: int | None,
) -> str:
    """A turn in one line: model, tokens, cost, context, time; what is not known is left out."""
    spent = Spent()
    spent.add(usage)
    parts = [model] if model else []
    if usage:
        parts.append(tokens(spent))
    if spent.cost_usd is not None:
        parts.append(dollars(spent.cost_usd))
    if gauge := context(spent.context_tokens, window):
        parts.append(gauge)
    if duration_ms is not None:
        parts.append(f"{duration_ms / 1000:.1f} s")
    return " · ".join(parts)


def tokens(spent: Spent) -> str:
    """Tokens in and out; those that came from a cache are named apart."""
    cached = f" (+{spent.cached:,} cached)" if spent.cached else ""
    return f"{spent.input:,} in{cached}, {spent.output:,} out"


def dollars(cost: float) -> str:
    """A price with as many digits as say something."""
    if cost == 0:
        return "$0"
    return f"${cost:.2f}" if cost >= 1 else f"${cost:.4f}"


def context(used: int | None, window: int | None) -> str | None:
    """How full the context is."""
    if not used:
        return None
    return (
        f"context {used * 100 / window:.0f}% of {window:,}"
        if window
        else f"context {used:,} tokens"
    )
