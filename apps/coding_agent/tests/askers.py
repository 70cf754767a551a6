"""Who asks in a test, and what it is answered."""

from __future__ import annotations

from dataclasses import dataclass, field

from coding_agent.approval import Asker
from lemon_core.approvals import ApprovalRequest, Approved, Denied


@dataclass
class Answers:
    """An approval service with one answer for everybody; an exception is raised."""

    answer: Approved | Denied | Exception | None = None
    asked: list[ApprovalRequest] = field(default_factory=list)

    async def request(self, request: ApprovalRequest) -> Approved | Denied:
        """The answer of a person."""
        self.asked.append(request)
        assert self.answer is not None
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def granted(self, request: ApprovalRequest) -> Approved | None:
        """The answer of what is stored."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, Approved) else None


def asker(answers: Answers, *, can_ask: bool = False) -> Asker:
    """A run that asks `answers`."""
    return Asker(answers, "run_1", "sess_1", "agent:default:main", "default", can_ask)
