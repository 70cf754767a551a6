"""Run phases and outcomes (specification lemon_core 3.7)."""

from __future__ import annotations

import pytest

from lemon_core.phases import (
    NEXT,
    InvalidTransition,
    RunOutcome,
    RunPhase,
    RunPhaseGraph,
    infer_outcome,
)

pytestmark = pytest.mark.behaviour("lemon_core.6")


@pytest.mark.parametrize("current", RunPhase)
@pytest.mark.parametrize("target", RunPhase)
def test_only_the_moves_of_the_table_are_legal(current: RunPhase, target: RunPhase) -> None:
    if target in NEXT[current]:
        assert RunPhaseGraph.transition(current, target) is target
    else:
        with pytest.raises(InvalidTransition):
            RunPhaseGraph.transition(current, target)


def test_terminal_phases_have_no_successor() -> None:
    terminal = {phase for phase in RunPhase if RunPhaseGraph.terminal(phase)}
    assert terminal == {RunPhase.COMPLETED, RunPhase.FAILED, RunPhase.ABORTED}


@pytest.mark.parametrize(
    ("summary", "outcome"),
    [
        ({"completed": {"ok": True, "answer": "hi"}}, RunOutcome.SUCCESS),
        ({"ok": True, "answer": "hi"}, RunOutcome.SUCCESS),
        ({"completed": {"ok": True, "answer": "  "}}, RunOutcome.PARTIAL),
        ({"completed": {"ok": False, "error": "user_requested"}}, RunOutcome.ABORTED),
        (
            {"completed": {"ok": False, "error": {"code": "run_watchdog_timeout"}}},
            RunOutcome.ABORTED,
        ),
        ({"completed": {"ok": False, "error": "lock_timeout"}}, RunOutcome.FAILURE),
        ({"completed": {"ok": False}}, RunOutcome.FAILURE),
        ({"outcome": "partial", "ok": True, "answer": "x"}, RunOutcome.PARTIAL),
        ({"outcome": "great", "ok": True, "answer": "x"}, RunOutcome.SUCCESS),
        ({"completed": {"ok": 1}}, RunOutcome.UNKNOWN),
        ({"completed": "yes"}, RunOutcome.UNKNOWN),
        ({"ok": True, "answer": 7}, RunOutcome.PARTIAL),
        ({}, RunOutcome.UNKNOWN),
        (None, RunOutcome.UNKNOWN),
        ("text", RunOutcome.UNKNOWN),
    ],
)
def test_outcomes_follow_the_summary(summary: object, outcome: RunOutcome) -> None:
    assert infer_outcome(summary) is outcome
