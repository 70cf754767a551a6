import itertools

import pytest

from lemon_agent import LoopState
from lemon_agent.errors import InvalidLoopTransition
from lemon_agent.states import NEXT, check_transition


def test_only_the_moves_of_the_table_are_allowed() -> None:
    for origin, target in itertools.product([None, *LoopState], LoopState):
        if target in NEXT[origin]:
            check_transition(origin, target)
        else:
            with pytest.raises(InvalidLoopTransition, match=target):
                check_transition(origin, target)


def test_every_state_is_reached_and_every_way_leads_to_an_end() -> None:
    reached: set[LoopState] = set().union(*NEXT.values())
    assert reached == set(LoopState)
    ends = {state for state in LoopState if not NEXT[state]}
    assert ends == {LoopState.FINALIZING, LoopState.ABORTED}
    leading = set(ends)
    while grown := {s for s in LoopState if NEXT[s] & leading} - leading:
        leading |= grown
    assert leading == set(LoopState)
