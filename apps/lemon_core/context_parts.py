"""The parts of an execution context, and the errors about it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from lemon_core.errors import LemonError
from lemon_core.policy_fields import MAX_JSON_INT

AuthorityCode = Literal[
    "depth_exceeded", "workspace_escape", "expired", "children_exceeded", "invalid_request"
]
RejectionCode = Literal[
    "unsupported_version",
    "malformed",
    "digest_mismatch",
    "expired",
    "run_mismatch",
    "node_mismatch",
    "invalid_policy",
    "workspace_escape",
]
PrincipalKind = Literal["user", "operator", "agent", "cron", "node", "system", "unknown"]

STRICT: Final = ConfigDict(frozen=True, extra="forbid", strict=True)
_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1, le=MAX_JSON_INT)]
_TimeMs = Annotated[int, Field(ge=0, le=MAX_JSON_INT)]
_Cost = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AuthorityError(LemonError):
    """A run asked for more than its context, or its parent's, gives; `code` says what."""

    def __init__(self, code: AuthorityCode, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code  # type: ignore[misc]  # here the code is a fact of the instance
        self.detail = detail


class ContextRejected(LemonError):
    """A wire form that this node does not run under; `code` says why."""

    def __init__(self, code: RejectionCode, detail: str) -> None:
        super().__init__(f"execution context rejected ({code}): {detail}")
        self.code = code  # type: ignore[misc]  # here the code is a fact of the instance
        self.detail = detail


class Lineage(BaseModel):
    """Which run this is and which runs it comes from."""

    model_config = STRICT

    run_id: _Text
    root_run_id: _Text
    parent_run_id: _Text | None = None
    session_key: _Text
    agent_id: _Text
    depth: int = Field(default=0, ge=0, le=MAX_JSON_INT)


class Principal(BaseModel):
    """On whose behalf a run acts, as verified by whoever let the request in."""

    model_config = STRICT

    kind: PrincipalKind
    id: _Text
    display: str | None = None


class Provenance(BaseModel):
    """Where a request came from, and the node it is addressed to (None is any)."""

    model_config = STRICT

    origin: _Text
    engine: Literal["lemon"] = "lemon"
    channel_id: str | None = None
    account_id: str | None = None
    peer_kind: str | None = None
    peer_id: str | None = None
    node_id: str | None = None
    untrusted_input: bool = False


class Limits(BaseModel):
    """Bounds on a run; None is unlimited. `deadline_ms` is a wall-clock time, the rest amounts."""

    model_config = STRICT

    max_depth: _Count | None = None
    max_children: _Count | None = None
    max_tool_calls: _Count | None = None
    max_tokens: _Count | None = None
    max_cost_usd: _Cost | None = None
    max_runtime_ms: _Count | None = None
    deadline_ms: _Count | None = None

    def tightened(self, other: Limits | None) -> Limits:
        """The smaller bound of each field."""
        if other is None or other == self:
            return self
        bounds = {
            name: min((v for v in (mine, getattr(other, name)) if v is not None), default=None)
            for name, mine in self
        }
        return Limits.model_validate(bounds)


class Validity(BaseModel):
    """From when, and until when, a context may be used."""

    model_config = STRICT

    issued_at_ms: _TimeMs
    expires_at_ms: _TimeMs | None = None

    def expired(self, now_ms: int) -> bool:
        """True after `expires_at_ms`; at that very moment the context still counts."""
        return self.expires_at_ms is not None and now_ms > self.expires_at_ms
