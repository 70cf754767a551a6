"""Small pure helpers: merging, backoff, canonical JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping


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
