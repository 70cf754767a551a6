"""What is asked of a person before something is done, and what can come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal, get_args

from lemon_core import session_key as session_keys
from lemon_core.errors import LemonError
from lemon_core.runs import DEFAULT_AGENT
from lemon_core.store.approvals import GRANT_TABLES, GrantScope
from lemon_core.util import canonical_json

Decision = Literal["approve_once", "approve_session", "approve_agent", "approve_global", "deny"]
DECISIONS: Final[tuple[Decision, ...]] = get_args(Decision)
EVENT_TYPES: Final = frozenset({"approval_requested", "approval_resolved"})
"""What is published about questions."""
ApprovalScope = Literal["once", "session", "agent", "global", "node"]


@dataclass(frozen=True, slots=True)
class GrantRule:
    """What may answer a request: stored grants of these scopes, those for `any` action only with
    `wildcard`, and of a person these decisions."""

    scopes: frozenset[GrantScope] = frozenset(GRANT_TABLES)
    wildcard: bool = True
    decisions: frozenset[Decision] = frozenset(DECISIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """What is to be done, for whom, and why a person should look at it.

    `action` is JSON. Without `expires_in_ms` the question waits as long as its requester does.
    """

    tool: str
    action: Mapping[str, object]
    run_id: str | None = None
    session_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    node_id: str | None = None
    rationale: str | None = None
    expires_in_ms: int | None = None
    grants: GrantRule = field(default_factory=GrantRule)

    @property
    def agent(self) -> str:
        """The agent that asks: as given, else the session key's, else `default`."""
        return self.agent_id or session_keys.agent_id(self.session_key) or DEFAULT_AGENT

    def owner(self, scope: GrantScope) -> str | None:
        """Whose grants of `scope` count; None when the request names nobody there."""
        owners: Mapping[GrantScope, str | None] = {
            "global": "global",
            "node": self.node_id,
            "agent": self.agent,
            "session": self.session_key,
        }
        return owners[scope] or None


@dataclass(frozen=True, slots=True)
class Approved:
    """It may be done: this once, or because of a grant of `scope`."""

    scope: ApprovalScope


@dataclass(frozen=True, slots=True)
class Denied:
    """A person said no."""


class ApprovalTimeout(LemonError):
    """A question ended without an answer."""

    code = "approval_timeout"

    def __init__(self, approval_id: str, reason: str | None) -> None:
        super().__init__(f"approval {approval_id} was not answered: {reason or 'its time is over'}")
        self.approval_id, self.reason = approval_id, reason


class InvalidDecision(LemonError):
    """An answer that the question does not take; the question stays open.

    `taken` are those that it takes, empty where only another node knows.
    """

    code = "invalid_decision"

    def __init__(self, approval_id: str, decision: str, taken: tuple[str, ...]) -> None:
        help_text = f": use one of {', '.join(taken)}" if taken else ""
        super().__init__(f"approval {approval_id} takes no decision {decision!r}{help_text}")
        self.approval_id, self.decision, self.taken = approval_id, decision, taken


class ApprovalsClosed(LemonError):
    """The runtime stopped while a question was open."""

    code = "approvals_closed"


def action_hash(action: Mapping[str, object]) -> str:
    """What equal actions share: the first 16 hex digits of their canonical JSON's SHA-256.

    Raises ValueError or TypeError for what is not JSON.
    """
    return sha256(canonical_json(action)).hexdigest()[:16]
