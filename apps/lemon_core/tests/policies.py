"""Hypothesis strategies for tool policies and execution contexts."""

from __future__ import annotations

from hypothesis import strategies as st

from lemon_core.execution_context import (
    ExecutionContext,
    Limits,
    Lineage,
    Principal,
    Provenance,
    Validity,
    Workspace,
)
from lemon_core.tool_classes import TOOL_CLASSES
from lemon_core.tool_policy import ToolPolicy
from lemon_core.tool_profiles import PROFILE_NAMES

TOOLS = ("read", "write", "bash", "jobs", "execute_code", "task", "agent", "webfetch", "mcp_x_y")
COMMANDS = ("git", "git status", "git status -s", "ls", "ls -l", "rm -rf")
MODES = ("always", "dangerous", "never")

_tools = st.lists(st.sampled_from(TOOLS), max_size=4)
_commands = st.lists(st.sampled_from(COMMANDS), max_size=3)
_amounts = st.none() | st.integers(1, 1_000)
_times = st.integers(1_000, 2_000)
_texts = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=8)

raw_policies = st.fixed_dictionaries(
    {},
    optional={
        "allow": st.just("all") | _tools,
        "deny": _tools,
        "blocked_tools": _tools,
        "require_approval": _tools,
        "approvals": st.dictionaries(st.sampled_from(TOOLS), st.sampled_from(MODES), max_size=4),
        "deny_classes": st.lists(st.sampled_from(TOOL_CLASSES), max_size=2),
        "allowed_commands": st.none() | _commands,
        "blocked_commands": _commands,
        "max_file_size": _amounts,
        "sandbox": st.booleans(),
        "no_reply": st.booleans(),
        "profile": st.none() | st.sampled_from(PROFILE_NAMES),
    },
)
policies = raw_policies.map(ToolPolicy.parse)

limits = st.builds(
    Limits,
    max_depth=_amounts,
    max_children=_amounts,
    max_tool_calls=_amounts,
    max_tokens=_amounts,
    max_cost_usd=st.none() | st.floats(0.001, 1_000),
    max_runtime_ms=_amounts,
    deadline_ms=_amounts,
)


@st.composite
def contexts(draw: st.DrawFn) -> ExecutionContext:
    """Any valid context; its workspace need not exist."""
    depth = draw(st.integers(0, 5))
    root = "/" + draw(st.sampled_from(("srv", "srv/work", "home/é")))
    return ExecutionContext(
        lineage=Lineage(
            run_id=draw(_texts),
            root_run_id=draw(_texts),
            parent_run_id=draw(_texts) if depth else None,
            session_key="agent:default:main",
            agent_id=draw(_texts),
            depth=depth,
        ),
        principal=Principal(
            kind=draw(st.sampled_from(("user", "operator", "cron", "unknown"))),
            id=draw(_texts),
            display=draw(st.none() | _texts),
        ),
        provenance=Provenance(
            origin=draw(_texts),
            peer_id=draw(st.none() | _texts),
            untrusted_input=draw(st.booleans()),
        ),
        workspace=Workspace(cwd=f"{root}/sub", roots=(root, "/opt"), read_only=draw(st.booleans())),
        capabilities=draw(policies),
        limits=draw(limits),
        validity=Validity(issued_at_ms=0, expires_at_ms=draw(st.none() | _times)),
    )
