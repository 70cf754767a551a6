"""The orderly end of a runtime: three steps in a fixed order, within one time budget.

`refuse`: take no new work. `end`: end live runs. `relay`: pass on that they ended. Then the
components unwind. A step that hangs is left behind when its share of the budget is used up, so that
the later ones still get theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal

import anyio

from lemon_core.logs import get_logger

log = get_logger("lemon_core.drain")

DrainStep = Literal["refuse", "end", "relay"]
DrainFn = Callable[[], Awaitable[None]]

# The point of the budget at which each step is left behind; the rest is for unwinding.
STEP_ENDS: Final[Mapping[DrainStep, float]] = MappingProxyType(
    {"refuse": 0.2, "end": 0.7, "relay": 0.9}
)


class Drain:
    """The functions that were registered for each step."""

    def __init__(self) -> None:
        self._steps: dict[DrainStep, list[DrainFn]] = {step: [] for step in STEP_ENDS}

    def add(self, step: DrainStep, fn: DrainFn) -> None:
        """Call `fn` in `step`; all functions of one step run at once."""
        self._steps[step].append(fn)

    async def run(self, budget_s: float) -> None:
        """Run the steps in order; a failing or slow function holds up nothing but itself."""
        start = anyio.current_time()
        for step, share in STEP_ENDS.items():
            # Shielded: a component that crashed has cancelled the scope that this runs in.
            with anyio.CancelScope(deadline=start + share * budget_s, shield=True) as scope:
                async with anyio.create_task_group() as tasks:
                    for fn in self._steps[step]:
                        tasks.start_soon(_contained, step, fn)
            if scope.cancelled_caught:
                log.warning("drain.step_left_behind", step=step)


async def _contained(step: DrainStep, fn: DrainFn) -> None:
    try:
        await fn()
    except Exception:  # the neighbours and the later steps must still run
        log.exception("drain.failed", step=step)
