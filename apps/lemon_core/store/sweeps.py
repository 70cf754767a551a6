"""The schedule on which expired records go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store.chat_state import ChatStateStore
from lemon_core.store.errors import StoreError
from lemon_core.store.run_store import RunStore

log = get_logger("lemon_core.store")

SWEEP_INTERVAL_MS = 300_000
HISTORY_SWEEP_EVERY = 2
"""Run history is swept every second time: every 10 minutes."""


Sweep = Callable[[], Awaitable[object]]

_NO_OTHERS: Final[Mapping[str, Sweep]] = MappingProxyType({})


async def serve_sweeps(
    runs: RunStore,
    chat_states: ChatStateStore,
    clock: Clock,
    others: Mapping[str, Sweep] = _NO_OTHERS,
) -> None:
    """Sweep every 5 minutes until cancelled; a failing sweep is logged and tried next time.

    `others` are sweeps by the table they sweep.
    """
    count = 0
    while True:
        await clock.sleep(SWEEP_INTERVAL_MS)
        count += 1
        await _contained("chat", chat_states.sweep)
        for table, sweep in others.items():
            await _contained(table, sweep)
        if count % HISTORY_SWEEP_EVERY == 0:
            await _contained("runs", runs.sweep)


async def _contained(table: str, sweep: Sweep) -> None:
    try:
        await sweep()
    except StoreError as exc:
        log.error("store.sweep_failed", table=table, error=str(exc))
