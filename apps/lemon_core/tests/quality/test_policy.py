"""The policy file as Python reads it. Specification lemon_core 16."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.quality.policy import POLICY_PATH, ArchitecturePolicy, PolicyError
from lemon_core.tests.quality.trees import policy_text, write_tree


def test_load_reads_all_four_tables(tmp_path: Path) -> None:
    text = policy_text({"a": [], "b": ["a"]}, {"a": [], "b": ["a", "c"]}, {"b": ["c"]})
    policy = ArchitecturePolicy.load(write_tree(tmp_path, {POLICY_PATH: text}))
    assert policy == ArchitecturePolicy(
        allowed={"a": frozenset(), "b": frozenset({"a"})},
        final={"a": frozenset(), "b": frozenset({"a", "c"})},
        reference_only={"b": frozenset({"c"})},
        final_reference_only={"b": frozenset({"c"})},
    )
    assert policy.drift() == [("b", "c")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ALLOWED = {", "policy.bzl:1: '{' was never closed"),
        ("FINAL = {}", "policy.bzl: ALLOWED is not defined"),
        ("ALLOWED = make_rows()", "policy.bzl:1: ALLOWED is not a plain literal"),
        ("ALLOWED = []", "policy.bzl:1: ALLOWED is not a dict"),
        ("ALLOWED = {'a': 'b'}", "policy.bzl:1: ALLOWED has a row that is not `app: [deps]`: 'a'"),
        ("ALLOWED = {'a': [1]}", "policy.bzl:1: ALLOWED['a'] holds something that is not a name"),
    ],
)
def test_a_policy_that_is_not_plain_data_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    write_tree(tmp_path, {POLICY_PATH: text})
    with pytest.raises(PolicyError) as caught:
        ArchitecturePolicy.load(tmp_path)
    assert str(caught.value).endswith(reason)


def test_a_missing_policy_is_refused_by_path(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=f"{POLICY_PATH}: cannot be read"):
        ArchitecturePolicy.load(tmp_path)
