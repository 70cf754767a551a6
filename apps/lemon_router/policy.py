"""The authority of a run: policy layers folded by intersection, and the context made from them.

No layer, in whatever order, widens another. A stored layer that cannot be read refuses the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from pydantic import ValidationError

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
from lemon_router.errors import Rejected

OPERATOR = Principal(kind="operator", id="operator")
SYSTEM = Principal(kind="system", id="system")

_PRINCIPAL_OF_ORIGIN = {"channel": "user", "cron": "cron", "node": "node", "webhook": "unknown"}
_FOLLOWUP_KEYS: Final = (
    "task_auto_followup",
    "delegated_auto_followup",
    "async_followups",
    "goal_continuation",
)
SHARED_PEERS: Final = frozenset({"group", "channel"})
GROUP_POLICY: Final = ToolPolicy.parse(
    {
        "approvals": dict.fromkeys(
            ("bash", "execute_code", "write", "edit", "hashline_edit", "patch"), "always"
        )
    }
)
"""Where many people write, what changes things has to be approved."""


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
            *await _channel_layers(request, stored),
            await stored.get("session", session_key),
            await stored.get("runtime"),
            caller.policy,
            request.tool_policy,
        )
    )


async def _channel_layers(
    request: RunRequest, stored: PolicyLayers
) -> tuple[ToolPolicy | None, ...]:
    context = channel_context(request)
    if context is None:
        return ()
    channel = context.get("channel_id")
    layer = await stored.get("channel", channel) if isinstance(channel, str) else None
    shared = _peer(context).get("kind") in SHARED_PEERS
    return (layer, GROUP_POLICY) if shared else (layer,)


def channel_context(request: RunRequest) -> Mapping[str, object] | None:
    """Where in a channel the request was written; None for every other origin."""
    context = request.meta.get("channel_context")
    if request.origin != "channel" or not isinstance(context, Mapping):
        return None
    return context


def principal_of(request: RunRequest, caller: Caller) -> Principal:
    """On whose behalf the run acts: the caller, or whom an app of this process speaks for."""
    kind = _PRINCIPAL_OF_ORIGIN.get(request.origin)
    if kind is None or caller.principal is not OPERATOR:
        return caller.principal
    context = channel_context(request)
    sender = None if context is None else context.get("sender")
    if context is not None and isinstance(sender, Mapping) and sender.get("id"):
        # The id alone says who it is: a name can be anybody's.
        name = f"{context.get('channel_id')}:{context.get('account_id')}:{sender['id']}"
        shown = sender.get("display_name")
        return Principal.model_validate(
            {"kind": kind, "id": name, "display": shown if isinstance(shown, str) else None}
        )
    return Principal.model_validate({"kind": kind, "id": request.session_key or request.origin})


def is_followup(request: RunRequest) -> bool:
    """True for what an earlier run of the session caused, and nobody wrote."""
    return any(request.meta.get(key) for key in _FOLLOWUP_KEYS)


def admit_followup(request: RunRequest, session_key: str, caller: Caller, now_ms: int) -> None:
    """Check the context that a follow-up or a child brings along; raises `Rejected`."""
    parent = request.execution_context
    if parent is None:
        if is_followup(request):
            raise Rejected("context_required", "a follow-up needs the context of its run")
        return
    if caller.principal is not OPERATOR and parent.principal != caller.principal:
        raise Rejected("context_invalid", "the context belongs to another principal")
    if not is_followup(request):
        return
    if parent.validity.expired(now_ms):
        raise Rejected("context_invalid", f"the context of {parent.run_id} has expired")
    if parent.lineage.session_key != session_key:
        raise Rejected("context_invalid", "the context belongs to another session")
    if request.origin == "channel" and parent.principal != principal_of(request, caller):
        raise Rejected("context_invalid", "the context belongs to another principal")
    if request.meta.get("mcp_endpoints"):
        # An empty grant admits none.
        raise Rejected("mcp_origin_not_granted", "the parent run was granted no MCP origin")


def limits_of(request: RunRequest, max_children: int) -> Limits:
    """The bounds of a run: the configured ones, tightened by the request; raises `Rejected`."""
    asked = request.meta.get("limits")
    bounds = Limits(max_children=max_children)
    if asked is None:
        return bounds
    try:
        return bounds.tightened(Limits.model_validate(asked))
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Rejected("invalid_limits", f"limits.{where}: {first['msg']}") from exc


def build_context(
    request: RunRequest,
    *,
    run_id: str,
    session_key: str,
    cwd: str,
    policy: ToolPolicy,
    caller: Caller,
    limits: Limits,
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
            limits,
            agent_id=request.agent_id,
            now_ms=now_ms,
            session_key=session_key,
        )
    return ExecutionContext.root(
        run_id=run_id,
        session_key=session_key,
        agent_id=request.agent_id,
        principal=principal_of(request, caller),
        provenance=_provenance(request),
        workspace=workspace,
        capabilities=policy,
        limits=limits,
        now_ms=now_ms,
    )


def _provenance(request: RunRequest) -> Provenance:
    untrusted = request.origin in {"channel", "webhook"}
    context = channel_context(request)
    if context is None:
        return Provenance(origin=request.origin, untrusted_input=untrusted)
    peer = _peer(context)
    return Provenance(
        origin=request.origin,
        channel_id=_text(context.get("channel_id")),
        account_id=_text(context.get("account_id")),
        peer_kind=_text(peer.get("kind")),
        peer_id=_text(peer.get("id")),
        untrusted_input=untrusted,
    )


def _peer(context: Mapping[str, object]) -> Mapping[str, object]:
    peer = context.get("peer")
    return peer if isinstance(peer, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


__all__ = [
    "GROUP_POLICY",
    "OPERATOR",
    "SYSTEM",
    "AuthorityError",
    "Caller",
    "PolicyLayers",
    "admit_followup",
    "build_context",
    "channel_context",
    "effective_policy",
    "fold",
    "is_followup",
    "limits_of",
    "principal_of",
]
