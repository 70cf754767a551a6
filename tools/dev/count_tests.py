"""Counts Bazel's test targets for `.ci/run`: `count_tests.py EVENTS BAZEL_EXIT_CODE`.

EVENTS is what `--build_event_json_file` wrote, one event per line. Standard library only: this
runs with the machine's own Python, also when the build failed.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# A flaky target passed in the end; Bazel's own exit code counts it as passed too.
_PASSED = {"PASSED", "FLAKY"}
# https://bazel.build/run/scripts: everything built, some tests failed.
_TESTS_FAILED = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """How many test targets ended how."""

    passed: int
    failed: int

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed"


def count(lines: Iterable[str], bazel_exit_code: int) -> Counts:
    """Count the targets in a stream of build events.

    A target that could not be analysed, built or started has no result and counts as failed. Where
    Bazel failed and no target tells of it (a broken BUILD file), the build itself is the failure.
    """
    wanted: set[str] = set()
    passed: set[str] = set()
    finished: set[str] = set()
    for line in lines:
        event = json.loads(line)
        identity = event.get("id", {})
        # Of a target that could not even be analysed Bazel does not say whether it is a test.
        if "targetConfigured" in identity and (
            "testSize" in event.get("configured", {}) or "aborted" in event
        ):
            wanted.add(identity["targetConfigured"]["label"])
        if "testSummary" in event:
            label = identity["testSummary"]["label"]
            finished.add(label)
            if event["testSummary"].get("overallStatus") in _PASSED:
                passed.add(label)
    failed = len((wanted | finished) - passed)
    if bazel_exit_code not in (0, _TESTS_FAILED) and failed == 0:
        failed = 1
    return Counts(len(passed), failed)


def main(events: Path, bazel_exit_code: int) -> int:
    """Print the line and return the exit code of the whole run."""
    lines = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    counts = count(lines, bazel_exit_code)
    print(counts)
    return bazel_exit_code or int(counts.failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
