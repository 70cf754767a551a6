"""The authority of a run: policy layers folded by intersection, and the context made from them.

No layer, in whatever order, widens another. A stored layer that cannot be read refuses the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from lemon_core.execution_context import (
    AuthorityError,
    ExecutionContext,
    Limits,
    Principal,
    Provenance,
    Workspace,
)
from lemon_core.runs import RunRequest
from lemon_core.store.wrappers import PolicyScope
from lemon_core.tool_policy import ToolPolicy, intersect

OPERATOR = Principal(kind="operator", id="operator")

_PRINCIPAL_OF_ORIGIN = {"channel": "user", "cron": "cron", "node": "node", "webhook": "unknown"}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who submits, as verified by the connection: never taken from the message.

    `origins` None means any. `policy` is the ceiling of everything this caller starts. `admin` may
    see and end the runs of others. Runs of a `confined` caller work inside the node's own roots.
    """

    id: str = "operator"
    principal: Principal = OPERATOR
    origins: frozenset[str] | None = None
    policy: ToolPolicy = field(default_factory=ToolPolicy.full_access)
    admin: bool = True
    confined: bool = False

    def may_use_origin(self, origin: str) -> bool:
        """True when the caller's credentials cover requests of this origin."""
        return self.origins is None or origin in self.origins


class PolicyLayers(Protocol):
    """The stored policies (core's `PolicyStore`); damaged ones raise."""

    async def get(self, scope: PolicyScope, key: str = ...) -> ToolPolicy | None:
        """The layer of `key` in `scope`."""


def fold(layers: Iterable[ToolPolicy | None]) -> ToolPolicy:
    """What all `layers` permit together; absent ones are neutral."""
    policy = ToolPolicy.full_access()
    for layer in layers:
        if layer is not None:
            policy = intersect(policy, layer)
    return policy


async def effective_policy(
    request: RunRequest,
    session_key: str,
    caller: Caller,
    stored: PolicyLayers,
    profile_policy: ToolPolicy | None,
) -> ToolPolicy:
    """The policy that the run of `request` gets; raises what a corrupt stored layer raises."""
    return fold(
        (
            await stored.get("agent", request.agent_id),
            profile_policy,
            await stored.get("session", session_key),
            await stored.get("runtime"),
            caller.policy,
            request.tool_policy,
        )
    )


def principal_of(request: RunRequest, caller: Caller) -> Principal:
    """On whose behalf the run acts: the caller, or whom an app of this process speaks for."""
    kind = _PRINCIPAL_OF_ORIGIN.get(request.origin)
    if kind is None or caller.principal is not OPERATOR:
        return caller.principal
    return Principal.model_validate({"kind": kind, "id": request.session_key or request.origin})


def build_context(
    request: RunRequest,
    *,
    run_id: str,
    session_key: str,
    cwd: str,
    policy: ToolPolicy,
    caller: Caller,
    now_ms: int,
) -> ExecutionContext:
    """The context the run gets: a root one, or a child of the context the request carries.

    Raises `AuthorityError` when the request asks for more than its parent has.
    """
    workspace = Workspace(cwd=cwd, roots=(cwd,))
    parent = request.execution_context
    if parent is not None:
        inside = workspace if request.cwd else None
        return parent.child(
            run_id,
            policy,
            inside,
            agent_id=request.agent_id,
            now_ms=now_ms,
            session_key=session_key,
        )
    return ExecutionContext.root(
        run_id=run_id,
        session_key=session_key,
        agent_id=request.agent_id,
        principal=principal_of(request, caller),
        provenance=Provenance(
            origin=request.origin, untrusted_input=request.origin in {"channel", "webhook"}
        ),
        workspace=workspace,
        capabilities=policy,
        limits=Limits(),
        now_ms=now_ms,
    )


__all__ = [
    "OPERATOR",
    "AuthorityError",
    "Caller",
    "PolicyLayers",
    "build_context",
    "effective_policy",
    "fold",
    "principal_of",
]
