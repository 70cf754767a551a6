"""What is said in the sweep, and what becomes of it when nothing goes wrong.

To switch on another queue mode, add a `Message` and its place in `converse`.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, Literal

from lemon_core.bridges import RunNotFound, SubmitResult
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.events import Event, RunPhaseChanged
from lemon_core.rpc.router_client import RouterClient
from lemon_core.runs import QueueMode, RunRequest
from tools.e2e.sweep.executor import FINISH

SESSION: Final = "agent:default:main:sub:sweep"
RETRY_MS: Final = 20
ENDED: Final = frozenset({"completed", "failed", "aborted", "absorbed"})

LAST: Final = frozenset({"run_completed", "run_absorbed"})
"""What a watcher hears last."""

Fate = Literal["answered", "queued, then answered", "merged", "aborted", "refused", "run_lost"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `fate` is what becomes of it without a crash."""

    label: str
    verb: Literal["answer", "tool", "hold", "later"] = "answer"
    mode: QueueMode = "collect"
    fate: Fate = "answered"

    @property
    def run_id(self) -> str:
        """Fixed by the sender, so that it can be sent again."""
        return f"run_{self.label}"

    @property
    def text(self) -> str:
        """What the executor reads."""
        return f"{self.label} {self.verb}"


PLAIN: Final = Message("plain")
TOOL: Final = Message("tool", "tool")
HELD: Final = Message("held", "hold")
QUEUED: Final = Message("queued", fate="queued, then answered")
OLDER: Final = Message("older", mode="followup", fate="merged")
NEWER: Final = Message("newer", mode="followup", fate="queued, then answered")
STEER: Final = Message("steer", mode="steer", fate="merged")
REDIRECT: Final = Message("redirect", mode="redirect", fate="merged")
LATER: Final = Message("later", "later", mode="steer_backlog", fate="queued, then answered")
STOPPED: Final = Message("stopped", "hold", fate="aborted")
DROPPED: Final = Message("dropped", fate="aborted")
CUT: Final = Message("cut", "hold", fate="aborted")
URGENT: Final = Message("urgent", mode="interrupt", fate="queued, then answered")
EMPTY: Final = Message("empty", fate="refused")

MESSAGES: Final = (
    PLAIN,
    TOOL,
    HELD,
    QUEUED,
    OLDER,
    NEWER,
    STEER,
    REDIRECT,
    LATER,
    STOPPED,
    DROPPED,
    CUT,
    URGENT,
    EMPTY,
)
"""In the order in which they are sent, which is the order in which those that wait are run."""


@dataclass(slots=True)
class Talk:
    """One client, and the answers it got; None stands for a message without an answer.

    A `patient` one talks to a router that has to notice first that another is dead.
    """

    client: RouterClient
    clock: Clock
    work: Path
    answers: dict[str, SubmitResult | None] = field(default_factory=dict)
    patient: bool = False

    async def say(self, message: Message) -> SubmitResult:
        """Send a message."""
        before = self.answers.setdefault(message.label, None)
        answer = await self.client.submit_run(self.request(message))
        if before is None and answer.status in ("accepted", "rejected"):
            self.answers[message.label] = answer
        return answer

    def accepted(self, message: Message) -> bool:
        """True when the sender knows that the message was taken."""
        answer = self.answers.get(message.label)
        return answer is not None and answer.status == "accepted"

    def request(self, message: Message) -> RunRequest:
        """The message as it is sent."""
        return RunRequest(
            run_id=message.run_id,
            session_key=SESSION,
            prompt="" if message is EMPTY else message.text,
            queue_mode=message.mode,
            cwd=str(self.work),
        )

    async def until(self, message: Message, event_type: str, phase: str = "") -> None:
        """Return when the run has told this."""
        async with aclosing(self.client.watch(message.run_id)) as events:
            async for event in events:
                if event.type == event_type and phase in ("", _phase(event)):
                    return
        raise AssertionError(f"{message.run_id} ended without {event_type} {phase}")

    async def finished(self, message: Message) -> None:
        """Tell a run that may be holding to go on; it may not have begun yet, or be over."""
        if message.verb != "hold":
            return
        for attempt in count():
            if await self.client.admission(message.run_id) in ENDED:
                return
            # A new id each time: a refusal is remembered.
            name = f"operator_{message.label}_{attempt}"
            try:
                outcome = await self.client.steer_run(message.run_id, FINISH, "steer", name)
            except LemonError:
                outcome = None  # the gateway is away
            if outcome is not None and outcome.accepted:
                return
            await self.clock.sleep(RETRY_MS)

    async def ended(self, *messages: Message) -> None:
        """Return when they have ended, for whoever watches and in the store."""
        for message in messages:
            while not await self._seen_to_its_end(message):
                state = await self.client.admission(message.run_id)
                assert self.patient, f"{message.run_id} is {state}, and not followed"
                await self.clock.sleep(RETRY_MS)
            # The record follows the last event in a moment.
            while await self.client.admission(message.run_id) not in ENDED:
                pass

    async def _seen_to_its_end(self, message: Message) -> bool:
        last = ""
        try:
            async with aclosing(self.client.watch(message.run_id)) as events:
                async for event in events:
                    last = event.type
        except RunNotFound:
            # Nothing is left to be watched of what was over before this process.
            return await self.client.admission(message.run_id) in ENDED
        assert last in LAST, f"{message.run_id} ends with {last or 'nothing'}"
        return True


def _phase(event: Event) -> str:
    return event.payload.phase if isinstance(event.payload, RunPhaseChanged) else ""


async def converse(talk: Talk) -> None:
    """The whole conversation."""
    for message in (PLAIN, TOOL):
        await talk.say(message)
        await talk.ended(message)
    await talk.say(EMPTY)

    await _begun(talk, HELD)
    await talk.say(QUEUED)
    await talk.say(OLDER)
    await talk.say(NEWER)
    await talk.ended(OLDER)
    for message in (STEER, REDIRECT):
        await talk.say(message)
        await talk.ended(message)
    await talk.say(LATER)
    await talk.until(LATER, "run_phase_changed", "queued_in_session")
    await talk.client.steer_run(HELD.run_id, FINISH, "steer", "operator_1")
    await talk.ended(HELD, QUEUED, NEWER, LATER)

    await _begun(talk, STOPPED)
    await talk.say(DROPPED)
    await talk.client.abort_session(SESSION)
    await talk.ended(DROPPED, STOPPED)

    await _begun(talk, CUT)
    await talk.say(URGENT)
    await talk.ended(CUT, URGENT)


async def go_on(talk: Talk) -> None:
    """After a crash: what was accepted ends by itself; everything else is sent, or sent again."""
    accepted = [message for message in MESSAGES if talk.accepted(message)]
    for message in accepted:
        await talk.finished(message)
    await talk.ended(*accepted)
    for message in MESSAGES:
        known = message in accepted
        answer = await talk.say(message)
        assert answer.duplicate or not known, f"{message.run_id} was accepted before, and forgotten"
        if message is not EMPTY:
            assert answer.status == "accepted", f"{message.run_id}: {answer}"
            await talk.finished(message)
            await talk.ended(message)


async def _begun(talk: Talk, message: Message) -> None:
    await talk.say(message)
    await talk.until(message, "delta")
