"""Tool policies and their intersection (specification lemon_core 6.1, 6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from lemon_core.tests.policies import COMMANDS, TOOLS, policies, raw_policies
from lemon_core.tool_classes import SHELL_EQUIVALENTS, ToolClassTable
from lemon_core.tool_policy import InvalidToolPolicy, ToolPolicy, intersect
from lemon_core.tool_profiles import MINIMAL_CORE, PROFILE_NAMES

STRICTNESS = ("never", "default", "dangerous", "always")


@pytest.mark.behaviour("lemon_core.15")
@given(policies)
def test_parsing_a_dump_is_the_identity(policy: ToolPolicy) -> None:
    assert ToolPolicy.parse(policy.dump()) == policy
    assert ToolPolicy.parse(policy.dump()).dump() == policy.dump()
    assert ToolPolicy.model_validate_json(policy.model_dump_json()) == policy


@given(raw_policies, raw_policies)
def test_explicit_fields_only_tighten_a_profile(
    raw: dict[str, object], fields: dict[str, object]
) -> None:
    """Specification lemon_core 6.1: a profile expands, explicit fields then tighten it."""
    profile = raw.get("profile")
    policy = ToolPolicy.parse({**fields, "profile": profile})
    plain = ToolPolicy.parse({"profile": profile})
    for tool in TOOLS:
        assert plain.allowed(tool) or not policy.allowed(tool)


@pytest.mark.parametrize("profile", PROFILE_NAMES)
def test_every_profile_keeps_its_name_and_a_full_dump(profile: str) -> None:
    policy = ToolPolicy.parse({"profile": profile})
    assert policy.profile == profile
    assert set(policy.dump()) == set(ToolPolicy.model_fields)


def test_what_the_profiles_permit() -> None:
    def permitted(profile: str) -> set[str]:
        return set(ToolPolicy.parse({"profile": profile}).filter_tools(TOOLS))

    every = set(TOOLS)
    assert permitted("full_access") == permitted("orchestrator") == permitted("custom") == every
    assert permitted("leaf_worker") == every - {"task", "agent"}
    assert permitted("minimal_core") == every - {"mcp_x_y"}
    assert permitted("read_only") == {"read"}
    assert permitted("safe_mode") == {"read", "task", "webfetch"}
    assert permitted("subagent_restricted") == permitted("safe_mode")
    assert permitted("no_external") == every - {"webfetch", "mcp_x_y"}
    assert ToolPolicy.of_profile("subagent_restricted").approval_mode("patch") == "always"
    assert "browser_click" in MINIMAL_CORE
    assert "media_status" in MINIMAL_CORE


@pytest.mark.behaviour("lemon_core.16")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"deny": ["bash"]}, "denied"),
        ({"blocked_tools": ["bash"]}, "blocked"),
        ({"deny_classes": ["dangerous"]}, "class_denied"),
    ],
)
def test_a_prohibition_beats_the_allow_list(fields: dict[str, object], reason: str) -> None:
    policy = ToolPolicy.parse({"allow": ["bash", "read"], **fields})
    assert policy.denial_reason("bash") == reason
    assert policy.allowed("read")
    assert policy.denial_reason("write") in ("not_allowed", reason)


@pytest.mark.behaviour("lemon_core.16")
@pytest.mark.parametrize("profile", ["safe_mode", "no_external"])
def test_a_tool_that_nobody_classified_is_denied(profile: str) -> None:
    policy = ToolPolicy.parse({"profile": profile})
    assert policy.denial_reason("mcp_x_y") == "class_denied"
    table = ToolClassTable()
    table.classify("mcp_x_y", ())
    assert policy.allowed("mcp_x_y", table)


@pytest.mark.behaviour("lemon_core.16")
@pytest.mark.parametrize("tool", sorted(SHELL_EQUIVALENTS))
@pytest.mark.parametrize(
    "fields",
    [
        {"deny": ["bash"]},
        {"blocked_tools": ["bash"]},
        {"deny_classes": ["dangerous"]},
        {"profile": "safe_mode"},
        {"profile": "subagent_restricted"},
        {"profile": "read_only"},
        {"allow": ["read"]},
    ],
)
def test_what_equals_the_shell_is_denied_wherever_it_is(
    fields: dict[str, object], tool: str
) -> None:
    policy = ToolPolicy.parse(fields)
    assert not policy.allowed("bash")
    assert not policy.allowed(tool)


def test_an_allow_list_may_name_a_shell_equivalent_alone() -> None:
    policy = ToolPolicy.parse({"allow": ["execute_code"]})
    assert policy.filter_tools(["execute_code", "bash", "jobs"]) == ["execute_code"]


@dataclass(frozen=True)
class Tool:
    name: str


def test_filtering_keeps_order_and_takes_tools_or_names() -> None:
    policy = ToolPolicy.parse({"deny": ["write"]})
    tools = [Tool("write"), Tool("read"), Tool("bash")]
    assert policy.filter_tools(tools) == [Tool("read"), Tool("bash")]


def test_when_a_call_has_to_be_approved() -> None:
    policy = ToolPolicy.parse(
        {
            "require_approval": ["read"],
            "approvals": {
                "read": "never",
                "write": "dangerous",
                "ls": "dangerous",
                "bash": "never",
                "edit": "always",
            },
        }
    )
    modes = {tool: policy.approval_mode(tool) for tool in ("read", "write", "bash", "patch")}
    assert modes == {"read": "always", "write": "dangerous", "bash": "never", "patch": "default"}
    assert policy.requires_approval("read")
    assert policy.requires_approval("edit")
    assert policy.requires_approval("write")
    assert not policy.requires_approval("ls")
    assert policy.requires_approval("ls", dangerous_action=True)
    assert not policy.requires_approval("bash", dangerous_action=True)
    assert not policy.requires_approval("patch", dangerous_action=True)


def test_whoever_is_asked_about_commands_is_asked_about_code_too() -> None:
    asks = ToolPolicy.parse(
        {"approvals": {"bash": "always", "execute_code": "never", "jobs": "never"}}
    )
    assert asks.requires_approval("execute_code")
    assert asks.requires_approval("debug")
    assert not asks.requires_approval("jobs")  # it starts nothing
    silent = ToolPolicy.parse({"approvals": {"bash": "never", "execute_code": "dangerous"}})
    assert silent.approval_mode("execute_code") == "dangerous"
    own = ToolPolicy.parse({"approvals": {"execute_code": "never"}})
    assert own.approval_mode("execute_code") == "never"


@pytest.mark.behaviour("lemon_core.17")
@given(policies, policies)
def test_a_meeting_never_permits_more_than_either_side(one: ToolPolicy, other: ToolPolicy) -> None:
    met = intersect(one, other)
    for side in (one, other):
        for tool in TOOLS:
            assert side.allowed(tool) or not met.allowed(tool)
            assert STRICTNESS.index(met.approval_mode(tool)) >= STRICTNESS.index(
                side.approval_mode(tool)
            )
        for command in (*COMMANDS, "git push", "git status; ls"):
            assert side.command_allowed(command) or not met.command_allowed(command)
        assert met.sandbox >= side.sandbox
        assert met.no_reply >= side.no_reply
        if side.max_file_size is not None:
            assert met.max_file_size is not None
            assert met.max_file_size <= side.max_file_size


@pytest.mark.behaviour("lemon_core.17")
@given(policies)
def test_meeting_oneself_changes_nothing(policy: ToolPolicy) -> None:
    assert intersect(policy, ToolPolicy.parse(policy.dump())) == policy
    assert intersect(policy, policy) is policy
    assert intersect(policy, None) is policy


@pytest.mark.behaviour("lemon_core.17")
@given(policies, policies)
def test_the_order_of_two_layers_does_not_matter(one: ToolPolicy, other: ToolPolicy) -> None:
    assert intersect(one, other) == intersect(other, one)


@given(policies, policies, policies)
def test_the_grouping_of_layers_does_not_matter(
    a: ToolPolicy, b: ToolPolicy, c: ToolPolicy
) -> None:
    def but_profile(policy: ToolPolicy) -> dict[str, object]:
        return {**policy.dump(), "profile": None}

    left = intersect(intersect(a, b), c)
    right = intersect(a, intersect(b, c))
    assert but_profile(left) == but_profile(right)


@given(policies, policies)
def test_a_meeting_is_canonical(one: ToolPolicy, other: ToolPolicy) -> None:
    met = intersect(one, other)
    assert ToolPolicy.parse(met.dump()) == met
    assert met.profile == (one.profile if one.profile == other.profile else "custom")


@pytest.mark.behaviour("lemon_core.17")
@given(policies, policies, st.sampled_from(TOOLS))
def test_a_child_cannot_gain_never(ceiling: ToolPolicy, request: ToolPolicy, tool: str) -> None:
    met = intersect(ceiling, request)
    if met.approval_mode(tool) == "never":
        assert ceiling.approval_mode(tool) == "never"
        assert request.approval_mode(tool) == "never"


@pytest.mark.behaviour("lemon_core.18")
def test_disjoint_command_lists_allow_nothing() -> None:
    one = ToolPolicy.parse({"allowed_commands": ["git"]})
    other = ToolPolicy.parse({"allowed_commands": ["ls"]})
    met = intersect(one, other)
    assert met.allowed_commands == ()
    assert not met.command_allowed("git")
    assert not met.command_allowed("ls")


def test_a_policy_is_strict_wherever_it_is_a_field() -> None:
    class Holder(BaseModel):
        policy: ToolPolicy

    held = Holder.model_validate({"policy": {"profile": "read_only"}})
    assert held.policy == ToolPolicy.of_profile("read_only")
    assert Holder.model_validate_json(held.model_dump_json()) == held
    with pytest.raises(ValidationError, match="unknown key"):
        Holder.model_validate({"policy": {"alow": "all"}})
    with pytest.raises(ValidationError):
        Holder.model_validate({"policy": None})


def test_parse_hands_a_policy_back_as_it_is() -> None:
    policy = ToolPolicy.parse({"deny": ["x"]})
    assert ToolPolicy.parse(policy) is policy
    with pytest.raises(InvalidToolPolicy, match="tool policy at deny: expected a list"):
        ToolPolicy.parse({"deny": "x"})
