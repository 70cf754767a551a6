"""A run between admission and the gateway."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lemon_core.resume import ConversationKey, ResumeToken
from lemon_core.runs import ExecutionCommand, QueueMode


@dataclass(frozen=True, slots=True)
class Submission:
    """One admitted run: the command for the gateway and what only the router needs to know.

    `resume_is_explicit` tells that the caller named the token; only other submissions may be bound
    late to what the session has learned since.
    """

    command: ExecutionCommand
    conversation_key: ConversationKey
    queue_mode: QueueMode
    resume_is_explicit: bool

    @property
    def run_id(self) -> str:
        """The run's id, fixed at admission."""
        return self.command.run_id

    @property
    def session_key(self) -> str:
        """The session the run belongs to."""
        return self.command.session_key

    def resumed(self, token: ResumeToken) -> Submission:
        """The same submission continuing from `token`; its place in the conversation stays."""
        return replace(self, command=self.command.model_copy(update={"resume": token}))
