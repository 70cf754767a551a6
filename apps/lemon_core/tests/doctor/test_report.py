"""The doctor's report (specification lemon_core 14; lemon_cli 2.2)."""

from __future__ import annotations

import pytest

from lemon_core.doctor import Check, Finding, Report

PASS = Check("a.one", "pass", "well")
WARN = Check("b.longer", "warn", "so so", "mend it")
FAIL = Check("c", "fail", "bad\nworse", "stop\nand mend")
SKIP = Check("d", "skip", "nothing there")


@pytest.mark.parametrize(
    ("checks", "overall", "ok"),
    [
        ((), "pass", True),
        ((PASS, SKIP), "pass", True),
        ((PASS, WARN), "warn", True),
        ((WARN, FAIL, PASS), "fail", False),
    ],
)
def test_the_worst_check_counts(checks: tuple[Check, ...], overall: str, ok: bool) -> None:
    report = Report(checks)
    assert (report.overall, report.ok) == (overall, ok)


def test_the_document() -> None:
    assert Report((PASS, WARN)).as_dict() == {
        "overall": "warn",
        "summary": {"pass": 1, "warn": 1, "fail": 0, "skip": 0},
        "checks": [
            {"name": "a.one", "status": "pass", "message": "well", "remediation": None},
            {"name": "b.longer", "status": "warn", "message": "so so", "remediation": "mend it"},
        ],
    }


def test_the_text_shows_what_needs_care() -> None:
    assert Report((PASS, WARN, FAIL, SKIP)).render() == (
        "[warn] b.longer  so so\n"
        "                 -> mend it\n"
        "[fail] c         bad\n"
        "                 worse\n"
        "                 -> stop\n"
        "                    and mend\n"
        "\n"
        "1 ok, 1 warning, 1 failed, 1 skipped (-v shows every check)"
    )


def test_the_verbose_text_shows_everything() -> None:
    assert Report((PASS, SKIP)).render(verbose=True) == (
        "[ok]   a.one  well\n"
        "[skip] d      nothing there\n"
        "\n"
        "All is well: 1 ok, 0 warnings, 0 failed, 1 skipped"
    )


def test_colours_are_around_the_mark_only() -> None:
    text = Report((FAIL,)).render(colours=True)
    assert text.startswith("\x1b[31m[fail]\x1b[0m c  bad\n")
    assert "\x1b" not in Report((FAIL,)).render()


def test_a_check_is_a_finding_with_a_name() -> None:
    assert Check.of("b.longer", Finding("warn", "so so", "mend it")) == WARN
