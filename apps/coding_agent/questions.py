"""Questions of a child to the run that it works for.

They live as long as the child waits, in memory like the child itself. The parent is told with a
message, and whoever joins the child gets back control to answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import anyio

from coding_agent.child import Child
from coding_agent.children import Children
from coding_agent.delivered import DeliveredMessage
from lemon_core.bus import Bus
from lemon_core.clock import Clock, within
from lemon_core.errors import LemonError

DEFAULT_WAIT_MS: Final = 300_000

Status = Literal["waiting", "answered", "timed_out", "cancelled"]


class QuestionRefused(LemonError):
    """A question that cannot be asked, or answered; the message says why."""

    code = "question_refused"


@dataclass(eq=False, slots=True)
class Question:
    """One question; `fallback` is what the child does without an answer, None when it cannot."""

    id: str
    child: Child
    question: str
    why_blocked: str
    options: Sequence[str] = ()
    recommended: str | None = None
    fallback: str | None = None
    status: Status = "waiting"
    answer: str | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)

    @property
    def text(self) -> str:
        """The question as the parent reads it."""
        record = self.child.record
        lines = [
            f"Task {record.id} ({record.description}) asks (request {self.id}): {self.question}",
            f"It cannot go on because: {self.why_blocked}",
        ]
        if self.options:
            lines.append(f"Options: {'; '.join(self.options)}")
        if self.recommended:
            lines.append(f"It recommends: {self.recommended}")
        if self.fallback:
            lines.append(f"Without an answer it will: {self.fallback}")
        return "\n".join(lines)


class Questions:
    """Those of a runtime that are open."""

    def __init__(self, children: Children, bus: Bus, clock: Clock) -> None:
        self._children, self._bus, self._clock = children, bus, clock
        self._open: dict[str, Question] = {}

    async def ask(
        self,
        run_id: str,
        question: str,
        why_blocked: str,
        *,
        options: Sequence[str] = (),
        recommended: str | None = None,
        fallback: str | None = None,
        timeout_ms: int = DEFAULT_WAIT_MS,
    ) -> Question:
        """Ask the parent of the task that `run_id` is; the question as it was settled.

        Raises `QuestionRefused` outside of a task, without a living parent, and while another
        question of the same task is open.
        """
        child = self._children.of_run(run_id)
        if child is None:
            raise QuestionRefused("only a task has a parent to ask")
        parent = self._children.live.get(child.record.parent_run_id)
        if parent is None:
            raise QuestionRefused("the run that gave this task has ended: decide yourself")
        if child.question is not None:
            raise QuestionRefused("one question of this task is open already")
        request_id = f"q_{secrets.token_hex(4)}"
        asked = Question(request_id, child, question, why_blocked, options, recommended, fallback)
        self._open[request_id] = asked
        child.ask(asked.text)
        self._tell("requested", asked)
        # Whoever waits for the task reads the question as the result of that.
        if not child.joiners:
            parent.notify(DeliveredMessage.of(asked.text, self._details(asked)))
        try:
            await within(self._clock, timeout_ms, asked.settled.wait)
        except TimeoutError:
            self._settle(asked, "timed_out")
        finally:
            if asked.status == "waiting":
                self._settle(asked, "cancelled")
            del self._open[request_id]
            child.ask(None)
        return asked

    def open_of(self, session_key: str) -> list[Question]:
        """The open questions that a session has to answer."""
        return [
            asked
            for asked in self._open.values()
            if asked.child.record.parent_session_key == session_key
        ]

    def answer(self, session_key: str, request_id: str, answer: str) -> None:
        """Answer a question of one's own task; raises `QuestionRefused`."""
        asked = next((q for q in self.open_of(session_key) if q.id == request_id), None)
        if asked is None or asked.status != "waiting":
            raise QuestionRefused(f"there is no open question {request_id!r} here")
        asked.answer = answer
        self._settle(asked, "answered")

    def _settle(self, asked: Question, status: Status) -> None:
        asked.status = status
        asked.settled.set()
        self._tell(status, asked)

    def _tell(self, what: str, asked: Question) -> None:
        record = asked.child.record
        payload = {
            "request_id": asked.id,
            "task_id": record.id,
            "run_id": record.run_id,
            "parent_run_id": record.parent_run_id,
            "status": asked.status,
        }
        topic = f"parent_question:{record.run_id}"
        self._bus.publish_event(
            topic, f"parent_question_{what}", payload, {"run_id": record.run_id}
        )

    @staticmethod
    def _details(asked: Question) -> dict[str, object]:
        record = asked.child.record
        return {
            "source": "parent_question",
            "task_id": record.id,
            "run_id": record.run_id,
            "status": "waiting",
            "delivery": "live_steer",
        }
