"""Cost from usage."""

from __future__ import annotations

import pytest

from lemon_ai import Catalog, ModelCost, Usage, calculate_cost
from lemon_ai.tests.support import chat_model
from lemon_ai.types import LongPromptPrice
from lemon_ai.usage import priced

USAGE = Usage(input=1_000_000, output=2_000_000, cache_read=3_000_000, cache_write=4_000_000)
PRICE = ModelCost(input=1, output=10, cache_read=0.5, cache_write=2)


@pytest.mark.behaviour("lemon_ai.6")
@pytest.mark.parametrize(("tier", "factor"), [(None, 1), ("flex", 0.5), ("priority", 2)])
def test_cost_by_bucket_and_tier(tier: str | None, factor: float) -> None:
    cost = calculate_cost(chat_model(cost=PRICE), USAGE, tier)
    assert cost is not None
    assert cost.model_dump() == {
        "input": 1 * factor,
        "output": 20 * factor,
        "cache_read": 1.5 * factor,
        "cache_write": 8 * factor,
        "total": 30.5 * factor,
    }


@pytest.mark.behaviour("lemon_ai.6")
def test_every_priced_model_costs_something() -> None:
    catalog = Catalog()
    for model in catalog.get_models("openai"):
        cost = calculate_cost(model, Usage(input=10, output=10))
        assert cost is not None
        assert cost.total > 0


def test_an_unknown_price_is_null() -> None:
    assert calculate_cost(chat_model(cost=None), USAGE) is None


def test_a_long_prompt_raises_the_price_of_the_whole_request() -> None:
    long_prompt = LongPromptPrice(above_tokens=100, input_factor=2, output_factor=1.5)
    model = chat_model(cost=PRICE.model_copy(update={"long_prompt": long_prompt}))
    short = calculate_cost(model, Usage(input=60, cache_read=40, output=10))
    long = calculate_cost(model, Usage(input=61, cache_read=40, output=10))
    assert short is not None
    assert long is not None
    assert long.cache_read == pytest.approx(short.cache_read * 2)
    assert long.output == pytest.approx(short.output * 1.5)


def test_priced_usage_has_its_total() -> None:
    usage = priced(chat_model(cost=PRICE), Usage(input=1, output=2, cache_read=3, cache_write=4))
    assert usage.total_tokens == 10
    assert usage.cost is not None
