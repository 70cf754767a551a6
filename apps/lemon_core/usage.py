"""The one arithmetic of tokens and cost, whatever words a provider uses for them.

What was not reported stays unknown: None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_CACHE_READ = ("cache_read", "cache_read_tokens", "cache_read_input_tokens", "cached_input_tokens")
_CACHE_WRITE = ("cache_write", "cache_write_tokens", "cache_creation_input_tokens")


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Token counts of one run in one vocabulary; None means the provider did not say."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None
    context: int | None = None
    cost_usd: float | None = None


_NOTHING = UsageTotals()


def normalize_usage(usage: Mapping[str, object] | None) -> UsageTotals | None:
    """Usage of any provider in one vocabulary; None when nothing was reported."""
    if not usage:
        return None
    totals = UsageTotals(
        input=_count(usage, "input", "input_tokens", "prompt_tokens"),
        output=_count(usage, "output", "output_tokens", "completion_tokens"),
        cache_read=_count(usage, *_CACHE_READ),
        cache_write=_count(usage, *_CACHE_WRITE),
        total=_count(usage, "total", "total_tokens"),
        context=context_tokens(usage),
        cost_usd=_number(usage, "cost_usd", "total_cost"),
    )
    return None if totals == _NOTHING else totals


def context_tokens(usage: Mapping[str, object]) -> int | None:
    """Tokens that the last model call held in its window, or None when usage does not tell."""
    given = _count(usage, "context_tokens")
    if given is not None:
        return given
    fresh = _count(usage, "input", "input_tokens")
    if fresh is not None:
        read = _count(usage, *_CACHE_READ) or 0
        return fresh + read + (_count(usage, *_CACHE_WRITE) or 0)
    # prompt_tokens already includes what came from the cache.
    return _count(usage, "prompt_tokens")


def _number(usage: Mapping[str, object], *names: str) -> float | None:
    """The first of `names` that holds a number; numbers written as text count, booleans do not."""
    for name in names:
        value = usage.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        try:
            number = float(value)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(number):
            return number
    return None


def _count(usage: Mapping[str, object], *names: str) -> int | None:
    value = _number(usage, *names)
    return None if value is None else int(value)
