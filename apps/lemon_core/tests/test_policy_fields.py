"""Strict reading of policy fields (specification lemon_core 6.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.policy_fields import FIELD_NAMES, InvalidToolPolicy
from lemon_core.tool_policy import ToolPolicy

MALFORMED: list[tuple[object, str, str]] = [
    (None, "", "wrong_type"),
    ("all", "", "wrong_type"),
    (["read"], "", "wrong_type"),
    ({"alow": "all"}, "alow", "unknown_key"),
    ({1: 2}, "1", "unknown_key"),
    ({"allow": None}, "allow", "wrong_type"),
    ({"allow": "ALL"}, "allow", "wrong_type"),
    ({"allow": "read"}, "allow", "wrong_type"),
    ({"allow": {"read": True}}, "allow", "wrong_type"),
    ({"allow": ["read", 3]}, "allow[1]", "wrong_type"),
    ({"deny": ["  "]}, "deny[0]", "blank_name"),
    ({"deny": "bash"}, "deny", "wrong_type"),
    ({"deny": None}, "deny", "wrong_type"),
    ({"require_approval": [None]}, "require_approval[0]", "wrong_type"),
    ({"approvals": ["bash"]}, "approvals", "wrong_type"),
    ({"approvals": {"bash": "sometimes"}}, "approvals.bash", "unknown_approval_mode"),
    ({"approvals": {"bash": None}}, "approvals.bash", "unknown_approval_mode"),
    ({"approvals": {"bash": 1}}, "approvals.bash", "unknown_approval_mode"),
    ({"approvals": {"bash": {}}}, "approvals.bash.mode", "unknown_approval_mode"),
    ({"approvals": {"bash": {"mode": {}}}}, "approvals.bash.mode", "unknown_approval_mode"),
    ({"approvals": {"bash": {"mode": "never", "x": 1}}}, "approvals.bash.x", "unknown_key"),
    ({"approvals": {" ": "never"}}, "approvals. ", "blank_name"),
    (
        {"approvals": {"bash": "never", " bash": "always"}},
        "approvals.bash",
        "unknown_approval_mode",
    ),
    ({"deny_classes": ["harmless"]}, "deny_classes", "unknown_class"),
    ({"allowed_commands": "git"}, "allowed_commands", "wrong_type"),
    ({"allowed_commands": ["git 'x"]}, "allowed_commands[0]", "unreadable_command"),
    ({"blocked_commands": [""]}, "blocked_commands[0]", "blank_name"),
    ({"max_file_size": 0}, "max_file_size", "not_positive"),
    ({"max_file_size": -1}, "max_file_size", "not_positive"),
    ({"max_file_size": True}, "max_file_size", "wrong_type"),
    ({"max_file_size": 1.5}, "max_file_size", "wrong_type"),
    ({"sandbox": 1}, "sandbox", "wrong_type"),
    ({"no_reply": "yes"}, "no_reply", "wrong_type"),
    ({"profile": "safe"}, "profile", "unknown_profile"),
    ({"profile": 1}, "profile", "wrong_type"),
]


@pytest.mark.behaviour("lemon_core.15")
@pytest.mark.parametrize(("value", "path", "code"), MALFORMED)
def test_every_malformed_form_raises_with_its_place(value: object, path: str, code: str) -> None:
    with pytest.raises(InvalidToolPolicy) as caught:
        ToolPolicy.parse(value)
    assert (caught.value.path, caught.value.code) == (path, code)


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@pytest.mark.behaviour("lemon_core.15")
@given(name=st.sampled_from(FIELD_NAMES), value=_junk)
def test_whatever_is_not_understood_never_widens(name: str, value: object) -> None:
    try:
        policy = ToolPolicy.parse({"profile": "read_only", name: value})
    except InvalidToolPolicy:
        return
    if name != "profile":
        assert not policy.allowed("bash")
        assert not policy.allowed("webfetch")


def test_names_are_trimmed_sorted_and_unique() -> None:
    policy = ToolPolicy.parse({"allow": [" write", "read ", "read"], "deny": ("b", "a")})
    assert policy.allow == ("read", "write")
    assert policy.deny == ("a", "b")


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        (True, "always"),
        ("required", "always"),
        ("always", "always"),
        ({"mode": True}, "always"),
        ("dangerous", "dangerous"),
        ({"mode": "dangerous"}, "dangerous"),
        (False, "never"),
        ("none", "never"),
        ("never", "never"),
    ],
)
def test_the_spellings_of_an_approval_mode(written: object, mode: str) -> None:
    assert ToolPolicy.parse({"approvals": {"bash": written}}).approvals == {"bash": mode}
