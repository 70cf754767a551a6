from lemon_agent import Budget, LoopBudgetExhausted
from lemon_agent.budget import Tally
from lemon_agent.types import Spent
from lemon_ai import AssistantMessage, Cost, Usage


def answer(tokens: int, cost: float | None = None) -> AssistantMessage:
    price = None if cost is None else Cost(total=cost)
    return AssistantMessage(usage=Usage(total_tokens=tokens, cost=price))


def test_usage_adds_up_and_what_is_unknown_counts_as_nothing() -> None:
    tally = Tally()
    for message in (answer(10, 0.5), answer(5), AssistantMessage(usage=None)):
        tally.add_answer(message)
    assert tally == Tally(tokens=15, cost_usd=0.5)


def test_a_limit_is_spent_once_it_is_reached() -> None:
    tally = Tally(tokens=15, cost_usd=0.5, tool_calls=2)
    assert tally.spent(None) is None
    assert tally.spent(Budget(max_tokens=16, max_cost_usd=0.6, max_tool_calls=3)) is None
    assert tally.spent(Budget(max_tokens=15)) == LoopBudgetExhausted("max_tokens_exhausted", 15, 15)
    assert tally.spent(Budget(max_cost_usd=0.4)) == LoopBudgetExhausted(
        "max_cost_usd_exhausted", 0.4, 0.5
    )
    assert tally.spent(Budget(max_tool_calls=1)) == LoopBudgetExhausted(
        "max_tool_calls_exhausted", 1, 2
    )


def test_what_others_used_on_its_behalf_counts_too() -> None:
    tally = Tally(tokens=15, cost_usd=0.5)
    budget = Budget(max_tokens=20, max_cost_usd=1)
    assert tally.spent(budget, lambda: Spent(4, 0.4)) is None
    assert tally.spent(budget, lambda: Spent(5)) == LoopBudgetExhausted(
        "max_tokens_exhausted", 20, 20
    )
    assert tally.spent(budget, lambda: Spent(0, 0.5)) == LoopBudgetExhausted(
        "max_cost_usd_exhausted", 1, 1.0
    )
