"""What approvals leave behind: grants that answer the next question, and questions that are open.

A grant stands under whom it holds for, the tool, and the hash of the action or `any` for all of the
tool's actions. Nothing here reads as "granted" or "not granted" by a failure: reads raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

from lemon_core.events import PendingApproval
from lemon_core.store.codec import Key
from lemon_core.store.core import Store
from lemon_core.store.rows import parse_row

GrantScope = Literal["global", "node", "agent", "session"]
GRANT_TABLES: Final[Mapping[GrantScope, str]] = {
    "global": "exec_approvals_policy",
    "node": "exec_approvals_node",
    "agent": "exec_approvals_agent",
    "session": "exec_approvals_session",
}
"""Where the grants of each scope stand, in the order in which they are asked."""

PENDING: Final = "exec_approvals_pending"
ANY_ACTION: Final = "any"


@dataclass(frozen=True, slots=True)
class Grant:
    """A stored permission; `action_hash` is `any` when it holds for every action of the tool."""

    tool: str
    action_hash: str
    scope: GrantScope
    approved: Literal[True]
    approved_at_ms: int


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question that waits, and the node whose run asks it."""

    pending: PendingApproval
    action_hash: str
    node_id: str


class ExecApprovalStore:
    """Grants and open questions. Every call raises `StoreError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load_grant(
        self, scope: GrantScope, owner: str, tool: str, action_hash: str
    ) -> Grant | None:
        """The grant of `owner` (ignored for `global`) for exactly this hash or `any`."""
        key = _grant_key(scope, owner, tool, action_hash)
        value = await self._store.load(GRANT_TABLES[scope], key)
        if value is None:
            return None
        return parse_row(Grant, value, f"the stored {scope} approval of {tool}")

    async def put_grant(
        self, scope: GrantScope, owner: str, tool: str, action_hash: str, now_ms: int
    ) -> Grant:
        """Let this action of `tool` pass from now on; `any` for all of its actions."""
        grant = Grant(tool, action_hash, scope, True, now_ms)
        key = _grant_key(scope, owner, tool, action_hash)
        await self._store.put(GRANT_TABLES[scope], key, asdict(grant))
        return grant

    async def put_question(self, question: OpenQuestion) -> None:
        """Store a question under its id."""
        row = {
            "pending": question.pending.model_dump(mode="json"),
            "action_hash": question.action_hash,
            "node_id": question.node_id,
        }
        await self._store.put(PENDING, question.pending.id, row)

    async def load_question(self, approval_id: str) -> OpenQuestion | None:
        """The question, while it is open."""
        return _question(await self._store.load(PENDING, approval_id))

    async def take_question(self, approval_id: str) -> OpenQuestion | None:
        """The question, which is open no more; of any concurrent callers one gets it."""
        return _question(await self._store.take(PENDING, approval_id))

    async def load_questions(self) -> list[OpenQuestion]:
        """All open questions, the oldest first."""
        rows = await self._store.load_all(PENDING)
        found = [q for _, value in rows if (q := _question(value)) is not None]
        return sorted(found, key=lambda q: (q.pending.requested_at_ms or 0, q.pending.id))


def _grant_key(scope: GrantScope, owner: str, tool: str, action_hash: str) -> Key:
    return (tool, action_hash) if scope == "global" else (owner, tool, action_hash)


def _question(value: object) -> OpenQuestion | None:
    return None if value is None else parse_row(OpenQuestion, value, "an open approval")
