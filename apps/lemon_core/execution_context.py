"""What one run may do, bound to who asked for it, where, and for how long.

The router builds a context for every run. A child's context is derived from its parent's and can
only be narrower: the policy by `intersect`, the limits field by field, the workspace by paths with
their links resolved. No method widens one. Another process gets the wire form and validates it
anew; the digest there finds corruption, while authenticity is the duty of the connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import BaseModel, ValidationError

from lemon_core.context_parts import (
    STRICT,
    AuthorityError,
    ContextRejected,
    Limits,
    Lineage,
    Principal,
    Provenance,
    Validity,
)
from lemon_core.policy_fields import InvalidToolPolicy
from lemon_core.tool_policy import ToolPolicy, intersect
from lemon_core.util import canonical_json
from lemon_core.workspace import Workspace

__all__ = [
    "AuthorityError",
    "ContextRejected",
    "ExecutionContext",
    "Limits",
    "Lineage",
    "Principal",
    "Provenance",
    "Validity",
    "Workspace",
]

WIRE_VERSION: Final = 1


class ExecutionContext(BaseModel):
    """The authority of one run (version 1 of the wire form)."""

    model_config = STRICT

    lineage: Lineage
    principal: Principal
    provenance: Provenance
    workspace: Workspace
    capabilities: ToolPolicy
    limits: Limits
    validity: Validity

    @property
    def run_id(self) -> str:
        """The run that this context was made for."""
        return self.lineage.run_id

    @classmethod
    def root(
        cls,
        *,
        run_id: str,
        session_key: str,
        agent_id: str,
        principal: Principal,
        provenance: Provenance,
        workspace: Workspace,
        capabilities: ToolPolicy,
        now_ms: int,
        limits: Limits | None = None,
        expires_at_ms: int | None = None,
    ) -> ExecutionContext:
        """The context of a run that no other run started.

        Raises `AuthorityError`: `workspace_escape` when links lead `cwd` out of the roots,
        `expired`, or `invalid_request` for values that are no context.
        """
        if not workspace.contains(workspace.cwd):
            raise AuthorityError("workspace_escape", f"{workspace.cwd} leads out of its roots")
        try:
            context = cls(
                lineage=Lineage(
                    run_id=run_id, root_run_id=run_id, session_key=session_key, agent_id=agent_id
                ),
                principal=principal,
                provenance=provenance,
                workspace=workspace,
                capabilities=capabilities,
                limits=limits or Limits(),
                validity=Validity(issued_at_ms=now_ms, expires_at_ms=expires_at_ms),
            )
        except ValidationError as exc:
            raise AuthorityError("invalid_request", _first_problem(exc)) from exc
        context.require_valid(now_ms)
        return context

    def child(
        self,
        run_id: str,
        policy: ToolPolicy | None = None,
        workspace: Workspace | None = None,
        limits: Limits | None = None,
        agent_id: str | None = None,
        *,
        now_ms: int,
        session_key: str | None = None,
        children_started: int = 0,
        untrusted_input: bool = False,
    ) -> ExecutionContext:
        """The context of a run that this run starts: one level deeper, and never stronger.

        `children_started` counts the children this run has started before. Without a workspace the
        child works where its parent does. Raises `AuthorityError`.
        """
        self.require_valid(now_ms)
        depth = self.lineage.depth + 1
        bounds = self.limits
        if bounds.max_depth is not None and depth > bounds.max_depth:
            raise AuthorityError("depth_exceeded", f"depth {depth} of at most {bounds.max_depth}")
        if bounds.max_children is not None and children_started >= bounds.max_children:
            raise AuthorityError(
                "children_exceeded", f"{children_started} of at most {bounds.max_children} started"
            )
        try:
            lineage = Lineage(
                run_id=run_id,
                root_run_id=self.lineage.root_run_id,
                parent_run_id=self.lineage.run_id,
                session_key=session_key or self.lineage.session_key,
                agent_id=agent_id or self.lineage.agent_id,
                depth=depth,
            )
            return ExecutionContext(
                lineage=lineage,
                principal=self.principal,
                provenance=self._provenance(untrusted_input),
                workspace=self._narrower(workspace),
                capabilities=intersect(self.capabilities, policy),
                limits=bounds.tightened(limits),
                validity=Validity(issued_at_ms=now_ms, expires_at_ms=self.validity.expires_at_ms),
            )
        except ValidationError as exc:
            raise AuthorityError("invalid_request", _first_problem(exc)) from exc

    def narrowed(self, policy: ToolPolicy) -> ExecutionContext:
        """The same context with fewer capabilities, for example those of the peer that sent it."""
        return self.model_copy(update={"capabilities": intersect(self.capabilities, policy)})

    def require_valid(self, now_ms: int) -> None:
        """Raise `AuthorityError` with `expired` once this context may not be used any more."""
        if self.validity.expired(now_ms):
            raise AuthorityError("expired", f"the context of {self.run_id} has expired")

    def to_wire(self) -> dict[str, object]:
        """The form that other processes get: version, context and its digest."""
        context = self.model_dump(mode="json")
        return {"v": WIRE_VERSION, "context": context, "digest": _digest(context)}

    def to_wire_json(self) -> bytes:
        """`to_wire` as UTF-8 JSON, written only once."""
        context = canonical_json(self.model_dump(mode="json"))
        digest = hashlib.sha256(context).hexdigest()
        return b'{"v":%d,"context":%s,"digest":"%s"}' % (WIRE_VERSION, context, digest.encode())

    @classmethod
    def from_wire(
        cls,
        data: object,
        *,
        now_ms: int,
        expected_run_id: str | None = None,
        expected_node_id: str | None = None,
        allowed_roots: Iterable[str] | None = None,
    ) -> ExecutionContext:
        """The context that a peer sent, validated from scratch.

        `allowed_roots` are the directories this node lends to runs (None: any). Raises
        `ContextRejected`; nothing is repaired on the way.
        """
        context = _parse_wire(data)
        if context.validity.expired(now_ms):
            raise ContextRejected("expired", f"the context of {context.run_id} has expired")
        if expected_run_id is not None and context.run_id != expected_run_id:
            raise ContextRejected(
                "run_mismatch", f"it belongs to {context.run_id}, not to {expected_run_id}"
            )
        node_id = context.provenance.node_id
        if node_id is not None and expected_node_id is not None and node_id != expected_node_id:
            raise ContextRejected(
                "node_mismatch", f"it is addressed to node {node_id}, this is {expected_node_id}"
            )
        if allowed_roots is not None and not context.workspace.lies_within(allowed_roots):
            raise ContextRejected(
                "workspace_escape", "its workspace lies outside the roots of this node"
            )
        return context

    def _provenance(self, untrusted_input: bool) -> Provenance:
        if self.provenance.untrusted_input or not untrusted_input:
            return self.provenance
        return self.provenance.model_copy(update={"untrusted_input": True})

    def _narrower(self, workspace: Workspace | None) -> Workspace:
        if workspace is None:
            return self.workspace
        if not workspace.lies_within(self.workspace.roots):
            raise AuthorityError(
                "workspace_escape",
                f"{', '.join(workspace.roots)} is not inside {', '.join(self.workspace.roots)}",
            )
        if self.workspace.read_only and not workspace.read_only:
            return workspace.model_copy(update={"read_only": True})
        return workspace


def _parse_wire(data: object) -> ExecutionContext:
    if not isinstance(data, Mapping):
        raise ContextRejected("malformed", "expected a table with v, context and digest")
    version = data.get("v")
    if type(version) is not int or version != WIRE_VERSION:
        raise ContextRejected("unsupported_version", f"version {version!r} is not {WIRE_VERSION}")
    if set(data) != {"v", "context", "digest"}:
        raise ContextRejected("malformed", "expected exactly v, context and digest")
    context = data["context"]
    if not isinstance(context, Mapping):
        raise ContextRejected("malformed", "context is not a table")
    try:
        digest = _digest(context)
    except (ValueError, TypeError, RecursionError) as exc:
        raise ContextRejected("malformed", "context is not plain JSON") from exc
    if data["digest"] != digest:
        raise ContextRejected("digest_mismatch", "the context was altered or cut on its way")
    if "capabilities" not in context:
        raise ContextRejected("malformed", "capabilities: field required")
    policy = _wire_policy(context["capabilities"])
    try:
        return ExecutionContext.model_validate({**context, "capabilities": policy})
    except ValidationError as exc:
        raise ContextRejected("malformed", _first_problem(exc)) from exc


def _wire_policy(value: object) -> ToolPolicy:
    """A policy exactly as written: a node runs under what it was given or not at all."""
    try:
        policy = ToolPolicy.parse(value)
    except InvalidToolPolicy as exc:
        raise ContextRejected("invalid_policy", str(exc)) from exc
    if policy.dump() != value:
        raise ContextRejected("invalid_policy", "the policy is not in canonical form")
    return policy


def _digest(context: object) -> str:
    return hashlib.sha256(canonical_json(context)).hexdigest()


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
