"""The last line of `.ci/run`."""

import json
from pathlib import Path

import pytest

from tools.dev.count_tests import Counts, count, main


def configured(label: str, *, test: bool = True) -> str:
    about = {"targetKind": "py_test rule"} | ({"testSize": "SMALL"} if test else {})
    return json.dumps({"id": {"targetConfigured": {"label": label}}, "configured": about})


def summary(label: str, status: str) -> str:
    return json.dumps(
        {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}
    )


def test_each_target_counts_once_by_its_end() -> None:
    lines = [
        configured("//a:a"),
        configured("//a:lib", test=False),
        configured("//a:b"),
        configured("//a:c"),
        summary("//a:a", "PASSED"),
        summary("//a:b", "FAILED"),
        summary("//a:c", "FLAKY"),
    ]
    assert count(lines, 3) == Counts(passed=2, failed=1)


def test_a_target_that_was_not_built_counts_as_failed() -> None:
    lines = [configured("//a:a"), configured("//a:b"), summary("//a:a", "PASSED")]
    assert count(lines, 1) == Counts(passed=1, failed=1)


def test_a_target_that_was_not_analysed_counts_as_failed() -> None:
    aborted = json.dumps(
        {
            "id": {"targetConfigured": {"label": "//a:b"}},
            "aborted": {"reason": "ANALYSIS_FAILURE"},
        }
    )
    lines = [configured("//a:a"), aborted, summary("//a:a", "PASSED")]
    assert count(lines, 1) == Counts(passed=1, failed=1)


def test_a_build_that_failed_before_any_target_is_one_failure() -> None:
    assert count([], 1) == Counts(passed=0, failed=1)


def test_the_line_is_printed_and_bazels_exit_code_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events.json"
    events.write_text(configured("//a:a") + "\n" + summary("//a:a", "PASSED") + "\n")
    assert main(events, 0) == 0
    assert main(tmp_path / "absent", 37) == 37
    assert capsys.readouterr().out == "1 passed, 0 failed\n0 passed, 1 failed\n"
