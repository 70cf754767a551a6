"""Readiness (specification lemon_core 14; lemon_cli 2.2)."""

from __future__ import annotations

import pytest

from lemon_core.doctor import Check, Report
from lemon_core.doctor.readiness import Readiness

PASS = Check("a", "pass", "well")
WARN = Check("b", "warn", "so so", "mend it")
MISSING = Check("secrets.master_key", "fail", "there is no master key\nmore", "lemon secrets init")
BROKEN = Check("store.ping", "fail", "damaged")
SKIP = Check("d", "skip", "nothing there")


@pytest.mark.parametrize(
    ("checks", "status"),
    [
        ((), "ready"),
        ((PASS, SKIP), "ready"),
        ((PASS, WARN), "warning"),
        ((WARN, MISSING), "blocked"),
        ((MISSING, WARN, BROKEN), "failed"),
    ],
)
def test_the_status_is_the_worst_of_all(checks: tuple[Check, ...], status: str) -> None:
    assert Readiness.of(Report(checks)).status == status


def test_the_document_has_the_worst_first_and_keeps_the_limit() -> None:
    found = Readiness.of(Report((WARN, MISSING, BROKEN, PASS)))
    assert found.as_dict(2) == {
        "status": "failed",
        "doctor": {"overall": "fail", "summary": {"pass": 1, "warn": 1, "fail": 2, "skip": 0}},
        "unresolved_count": 3,
        "unresolved": [
            {"check": "store.ping", "reason": "broken", "message": "damaged", "next_step": None},
            {
                "check": "secrets.master_key",
                "reason": "missing",
                "message": "there is no master key\nmore",
                "next_step": "lemon secrets init",
            },
        ],
    }


def test_the_text_is_a_few_lines() -> None:
    assert Readiness.of(Report((WARN, MISSING))).render(1) == (
        "Lemon is not ready: something is missing (blocked).\n"
        "  missing    secrets.master_key: there is no master key\n"
        "             -> lemon secrets init\n"
        "  and 1 more (--limit)"
    )
    assert Readiness.of(Report((PASS,))).render(10) == "Lemon is ready."
