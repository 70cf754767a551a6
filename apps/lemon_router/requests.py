"""A run between admission and the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from lemon_core.execution_context import Principal
from lemon_core.resume import ConversationKey, ResumeToken
from lemon_core.runs import ExecutionCommand, QueueMode

if TYPE_CHECKING:
    from lemon_router.compaction import Marker

Disposition = Literal["started", "queued", "merged", "steering"]
"""What became of a message at the moment it was taken."""

USER_ORIGINS: Final = frozenset({"channel", "control_plane"})


@dataclass(frozen=True, slots=True)
class Submission:
    """One admitted run: the command for the gateway and what only the router needs to know.

    `resume_is_explicit` tells that the caller named the token; only other submissions may be bound
    late to what the session has learned since. `order` sorts submissions by admission. `consumes`
    is the compaction marker that the prompt was made from.
    """

    command: ExecutionCommand
    conversation_key: ConversationKey
    queue_mode: QueueMode
    resume_is_explicit: bool
    order: int = 0
    origin: str = "unknown"
    consumes: Marker | None = None

    @property
    def run_id(self) -> str:
        """The run's id, fixed at admission."""
        return self.command.run_id

    @property
    def session_key(self) -> str:
        """The session the run belongs to."""
        return self.command.session_key

    @property
    def meta(self) -> Mapping[str, object]:
        """What travels with the run."""
        return self.command.meta

    @property
    def principal(self) -> Principal | None:
        """On whose behalf the run acts."""
        context = self.command.execution_context
        return None if context is None else context.principal

    @property
    def from_user(self) -> bool:
        """True for what a person wrote just now, in a chat or a console."""
        return self.origin in USER_ORIGINS

    @property
    def continues_goal(self) -> bool:
        """True for the next step of a goal, which gives way to people."""
        return bool(self.meta.get("goal_continuation"))

    def resumed(self, token: ResumeToken) -> Submission:
        """The same submission continuing from `token`; its place in the conversation stays."""
        return replace(self, command=self.command.model_copy(update={"resume": token}))

    def in_mode(self, mode: QueueMode) -> Submission:
        """The same submission, queued in another mode."""
        return self if mode == self.queue_mode else replace(self, queue_mode=mode)

    def with_meta(self, **changes: object) -> Submission:
        """The same submission with more in its meta."""
        meta = {**self.command.meta, **changes}
        return replace(self, command=self.command.model_copy(update={"meta": meta}))
