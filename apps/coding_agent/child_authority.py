"""What a child may do: never more than its parent, within what is left of its parent's limits."""

from __future__ import annotations

from typing import Final

from coding_agent.child import ChildSpec, SpawnRefused
from coding_agent.live_runs import LiveRun
from lemon_core import ids
from lemon_core.context_parts import AuthorityError, Limits
from lemon_core.execution_context import ExecutionContext, Workspace
from lemon_core.tool_policy import ToolPolicy

MAX_DEPTH: Final = 3


def require_room(parent: LiveRun, max_children: int) -> None:
    """Raise `SpawnRefused` when the run may start no more children; `max_children` counts where
    its context names no number."""
    limits = parent.context.limits
    most = limits.max_children or max_children
    if parent.children_started >= most:
        raise SpawnRefused(f"this run has started {most} tasks, which is all it may start")
    used = parent.used()
    if limits.max_tokens is not None and used.tokens >= limits.max_tokens:
        raise SpawnRefused(f"the limit of {limits.max_tokens} tokens is used up")
    if limits.max_cost_usd is not None and used.cost_usd >= limits.max_cost_usd:
        raise SpawnRefused(f"the limit of {limits.max_cost_usd:g} USD is used up")


def child_context(
    parent: LiveRun, spec: ChildSpec, session_key: str, *, max_children: int, now_ms: int
) -> ExecutionContext:
    """The authority of a new child; raises `SpawnRefused`."""
    require_room(parent, max_children)
    try:
        context = parent.context.child(
            ids.run_id(),
            spec.policy or ToolPolicy.of_profile("leaf_worker"),
            _workspace(parent, spec.cwd),
            _limits(parent, max_children),
            now_ms=now_ms,
            session_key=session_key,
            children_started=parent.children_started,
        )
    except AuthorityError as exc:
        raise SpawnRefused(str(exc)) from exc
    if context.lineage.depth > MAX_DEPTH:
        raise SpawnRefused(f"a task may be at most {MAX_DEPTH} levels deep")
    return context


def _workspace(parent: LiveRun, cwd: str | None) -> Workspace | None:
    if cwd is None:
        return None
    mine = parent.context.workspace
    try:
        return Workspace.at(cwd, mine.roots, read_only=mine.read_only)
    except ValueError as exc:
        raise SpawnRefused(f"{cwd} lies outside the workspace") from exc


def _limits(parent: LiveRun, max_children: int) -> Limits:
    bounds, used = parent.context.limits, parent.used()
    tokens, cost = bounds.max_tokens, bounds.max_cost_usd
    return Limits(
        max_depth=MAX_DEPTH,
        max_children=bounds.max_children or max_children,
        max_tokens=None if tokens is None else tokens - used.tokens,
        max_cost_usd=None if cost is None else cost - used.cost_usd,
    )
