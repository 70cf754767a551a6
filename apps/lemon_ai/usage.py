"""What an answer cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lemon_ai.types import Cost, Model, Usage

_TIER_FACTOR = {"flex": 0.5, "priority": 2.0}
_MILLION = 1_000_000


def calculate_cost(model: Model, usage: Usage, service_tier: str | None = None) -> Cost | None:
    """US dollars for `usage` at the model's price; None when the price is not known."""
    price = model.cost
    if price is None:
        return None
    factor = _TIER_FACTOR.get(service_tier or "", 1.0) / _MILLION
    in_factor, out_factor = factor, factor
    prompt_tokens = usage.input + usage.cache_read + usage.cache_write
    if price.long_prompt is not None and prompt_tokens > price.long_prompt.above_tokens:
        in_factor *= price.long_prompt.input_factor
        out_factor *= price.long_prompt.output_factor
    parts = (
        usage.input * price.input * in_factor,
        usage.output * price.output * out_factor,
        usage.cache_read * price.cache_read * in_factor,
        usage.cache_write * price.cache_write * in_factor,
    )
    return Cost(
        input=parts[0],
        output=parts[1],
        cache_read=parts[2],
        cache_write=parts[3],
        total=sum(parts),
    )


def count_of(usage: Mapping[str, Any], name: str) -> int:
    """A count as a provider reports it; 0 when it does not."""
    value = usage.get(name)
    return max(value, 0) if isinstance(value, int) else 0


def priced(model: Model, usage: Usage, service_tier: str | None = None) -> Usage:
    """The usage with its total and its cost filled in."""
    total = usage.input + usage.output + usage.cache_read + usage.cache_write
    return usage.model_copy(
        update={"total_tokens": total, "cost": calculate_cost(model, usage, service_tier)}
    )
