"""What a run has spent, and whether that reaches a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lemon_agent.events import BudgetReason, LoopBudgetExhausted
from lemon_agent.types import Budget, Spent
from lemon_ai import AssistantMessage, Usage


@dataclass(slots=True)
class Tally:
    """Counts over one run. What a provider does not report (tokens, price) counts as nothing."""

    tokens: int = 0
    cost_usd: float = 0.0
    tool_calls: int = 0

    def add_answer(self, message: AssistantMessage) -> None:
        """Add the usage of a model call, whatever became of it."""
        self.add_usage(message.usage)

    def add_usage(self, usage: Usage | None) -> None:
        """Add what any model call on behalf of the run used."""
        if usage is not None:
            self.tokens += usage.total_tokens
            if usage.cost is not None:
                self.cost_usd += usage.cost.total

    def spent(
        self, budget: Budget | None, elsewhere: Callable[[], Spent] | None = None
    ) -> LoopBudgetExhausted | None:
        """The first limit that is reached, also with what was used `elsewhere`, or None."""
        if budget is None:
            return None
        others = Spent() if elsewhere is None else elsewhere()
        checks: tuple[tuple[BudgetReason, float | None, float], ...] = (
            ("max_tokens_exhausted", budget.max_tokens, self.tokens + others.tokens),
            (
                "max_cost_usd_exhausted",
                budget.max_cost_usd,
                self.cost_usd + others.cost_usd,
            ),
            ("max_tool_calls_exhausted", budget.max_tool_calls, self.tool_calls),
        )
        for reason, limit, used in checks:
            if limit is not None and used >= limit:
                return LoopBudgetExhausted(reason, limit, used)
        return None
