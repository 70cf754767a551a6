"""What others say of a run while it lives: its approvals, its tasks, its checkpoints.

They are on the bus already, told by whoever makes them. The run takes them into its own stream,
where they get the next `event_seq`: a subscriber on another node then sees them in their place, and
nobody there has to listen to this node's bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lemon_core.approval_types import EVENT_TYPES
from lemon_core.approvals import TOPIC as APPROVALS_TOPIC
from lemon_core.bus import Bus, Subscription, run_topic
from lemon_core.events import Event

_RUN_PREFIXES = ("task_", "checkpoint_")
_RUN_TYPES = frozenset({"run_graph_changed"})


def is_of_run(event: Event, run_id: str) -> bool:
    """True for what belongs into the stream of `run_id` and is published by others.

    Approvals of all runs share one topic. What routers tell on a run's topic is numbered by them.
    """
    if event.type in EVENT_TYPES:
        return event.meta.get("run_id") == run_id
    return event.type.startswith(_RUN_PREFIXES) or event.type in _RUN_TYPES


@contextmanager
def relaying(bus: Bus, run_id: str, take: Callable[[Event], None]) -> Iterator[Subscription]:
    """Have `take` called with such events, until the block ends.

    What is published from the subscription that this yields is not handed back.
    """

    def sort(event: Event) -> None:
        if is_of_run(event, run_id):
            take(event)

    with bus.listening((run_topic(run_id), APPROVALS_TOPIC), sort) as listener:
        yield listener
