"""What lemon_agent raises. Failures of a model or a tool are events of the run, not exceptions."""

from __future__ import annotations

from typing import ClassVar

from lemon_core.errors import LemonError


class AgentError(LemonError):
    """Base of the errors of this app."""

    code: ClassVar[str] = "agent_error"


class Aborted(AgentError):
    """The run's signal says stop; raised by `AbortSignal.check`."""

    code = "aborted"

    def __init__(self) -> None:
        super().__init__("the run was aborted")


class ToolError(AgentError):
    """Raised by a tool to fail with a text for the model, who sees only the message."""

    code = "tool_error"


class AlreadyStreaming(AgentError):
    """A prompt came while a run is active; nothing was queued."""

    code = "already_streaming"

    def __init__(self) -> None:
        super().__init__("the agent is busy: steer it, queue a follow-up or wait until it is idle")


class CannotContinue(AgentError):
    """There is nothing to answer in the history."""

    code = "cannot_continue"


class NoMessages(CannotContinue):
    """The history is empty."""

    code = "no_messages"

    def __init__(self) -> None:
        super().__init__("the history is empty: send a prompt first")


class InvalidLoopTransition(AgentError):
    """A programming error: the loop tried a move that its state table does not have."""

    code = "invalid_loop_transition"

    def __init__(self, origin: str | None, target: str) -> None:
        super().__init__(f"the loop cannot go from {origin or 'nothing'} to {target}")
        self.origin, self.target = origin, target
