"""Small pure helpers: merging, backoff, canonical JSON, usage arithmetic."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def deep_merge(base: Mapping[str, object], override: Mapping[str, object]) -> dict[str, object]:
    """`base` with `override` on top; mappings merge recursively, anything else is replaced."""
    merged = dict(base)
    for key, value in override.items():
        current = merged.get(key)
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            merged[key] = deep_merge(current, value)
        else:
            merged[key] = value
    return merged


def capped_backoff(
    base_ms: int,
    attempt: int,
    max_ms: int,
    *,
    factor: float = 2.0,
    jitter: float = 0.0,
    uniform: Callable[[float, float], float] = random.uniform,
) -> int:
    """Milliseconds before retry number `attempt` (0 first): exponential, capped, then jittered.

    `jitter` is the symmetric share of the delay, for example 0.1 for plus or minus ten percent.
    """
    # The exponent is bounded so that an endless retry loop cannot overflow a float.
    delay = min(float(max_ms), base_ms * factor ** min(attempt, 64))
    if jitter:
        delay += uniform(-jitter, jitter) * delay
    return max(0, round(delay))


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys, no spaces and no NaN: the form behind every hash and stored key.

    Raises `ValueError` for NaN and infinities and `TypeError` for values that are not JSON.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def truncate_utf8(text: str, max_bytes: int) -> str:
    """`text` cut to `max_bytes` of UTF-8 on a character boundary, naming what was dropped."""
    raw = text.encode()
    if len(raw) <= max_bytes:
        return text
    kept = raw[:max_bytes].decode(errors="ignore")
    return f"{kept}...[truncated {len(raw) - len(kept.encode())} bytes]"


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Token counts of one run in one vocabulary; None means the provider did not say."""

    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    total: int | None
    context: int | None
    cost_usd: float | None


_CACHE_READ = ("cache_read", "cache_read_tokens", "cache_read_input_tokens", "cached_input_tokens")
_CACHE_WRITE = ("cache_write", "cache_write_tokens", "cache_creation_input_tokens")


def _number(usage: Mapping[str, object], *names: str) -> float | None:
    """The first of `names` that holds a number; numbers written as text count, booleans do not."""
    for name in names:
        value = usage.get(name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                continue
    return None


def _count(usage: Mapping[str, object], *names: str) -> int | None:
    value = _number(usage, *names)
    return None if value is None else int(value)


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
    return None if totals == UsageTotals(*(None,) * 7) else totals
