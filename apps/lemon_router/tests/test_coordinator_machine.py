"""Random lives of messages through the coordinator, crashes included.

At most one active run per session and per resume token; every accepted run ends, is absorbed or
gets a synthetic end; no text is executed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lemon_core.bridges import SteerMode
from lemon_core.bus import Bus
from lemon_core.events import RunCompleted
from lemon_core.journal import Journal
from lemon_core.resume import ConversationKey, ResumeToken
from lemon_core.runs import Image
from lemon_router.coordinator import Coordinator
from lemon_router.followups import merged
from lemon_router.hooks import StartRefused
from lemon_router.queue_state import QueueRules
from lemon_router.relay import RunRelay
from lemon_router.requests import Submission
from lemon_router.tests.submissions import submission

SESSIONS = ("agent:a:main", "agent:b:main")
TOKENS = (None, ResumeToken(engine="lemon", value="t1"), ResumeToken(engine="lemon", value="t2"))
MODES = ("collect", "followup", "steer", "steer_backlog", "redirect", "interrupt")
LIMIT = 3


class StillClock:
    """Moves only by hand; nobody sleeps here."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    async def sleep(self, ms: float) -> None:
        raise AssertionError("the coordinator never waits")


@dataclass
class Process:
    """A run that was started."""

    submission: Submission
    begun: bool = False
    abort_reason: str | None = None

    def abort(self, reason: str) -> None:
        self.abort_reason = self.abort_reason or reason


class World:
    """What is outside of a router process, and outlives it: records, texts executed, ends."""

    def __init__(self) -> None:
        self.open: dict[str, Submission] = {}
        self.joined: dict[str, str] = {}
        self.ended: set[str] = set()
        self.absorbed: set[str] = set()
        self.refused: set[str] = set()
        self.begun: set[str] = set()
        self.executed: set[str] = set()

    def execute(self, text: str) -> None:
        for part in text.split("\n"):
            assert part not in self.executed, f"{part} was executed twice"
            self.executed.add(part)

    def end(self, run_id: str) -> None:
        del self.open[run_id]
        assert run_id not in self.ended | self.absorbed
        self.ended.add(run_id)


class Hooks:
    """One router process; tells the world what it does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.processes: dict[str, Process] = {}
        self.offered: dict[str, str] = {}
        self.waiting_for_room: set[ConversationKey] = set()
        self.former: set[str] = set()
        self.elsewhere: set[str] = set()

    def own(self, session_key: str) -> bool:
        return session_key not in self.elsewhere

    def start(self, one: Submission, relay: RunRelay) -> Process:
        if one.run_id not in self.former and len(self.processes) >= LIMIT:
            raise StartRefused("run_capacity_reached")
        assert one.run_id not in self.processes
        process = Process(one, begun=one.run_id in self.world.begun)
        self.processes[one.run_id] = process
        return process

    def steer(self, active_run_id: str, mode: SteerMode, one: Submission) -> None:
        self.offered[one.run_id] = active_run_id

    def dropped(self, one: Submission, completed: RunCompleted) -> None:
        assert (completed.completed.meta or {}).get("synthetic")
        self.offered.pop(one.run_id, None)
        self.world.end(one.run_id)

    def absorbed(self, one: Submission, by: str, mode: str) -> None:
        self.offered.pop(one.run_id, None)
        del self.world.open[one.run_id]
        self.world.absorbed.add(one.run_id)
        if mode == "followup":
            self.world.joined[one.run_id] = by

    def requeued(self, one: Submission) -> None:
        assert one.run_id not in self.offered

    def held(self, conversation: ConversationKey) -> None:
        self.waiting_for_room.add(conversation)


class Lives(RuleBasedStateMachine):
    """Submissions, ends, steers, aborts and crashes in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.world = StillClock(), World()
        self.stored: dict[str, Submission] = {}
        self.count = 0
        self.new_process()

    def new_process(self) -> None:
        self.hooks = Hooks(self.world)
        self.bus = Bus()
        self.journal = Journal(epoch="e", clock=self.clock)
        self.coordinator = Coordinator(
            hooks=self.hooks, clock=self.clock, rules=QueueRules(cap=6, drop="oldest")
        )

    def relay(self, one: Submission) -> RunRelay:
        return RunRelay(one, bus=self.bus, journal=self.journal, clock=self.clock)

    @rule(
        mode=st.sampled_from(MODES),
        session=st.sampled_from(SESSIONS),
        token=st.sampled_from(TOKENS),
        origin=st.sampled_from(["channel", "cron"]),
        goal=st.booleans(),
        picture=st.booleans(),
        gap_ms=st.sampled_from([0, 100, 1_000]),
    )
    def submit(
        self,
        mode: str,
        session: str,
        token: ResumeToken | None,
        origin: str,
        goal: bool,
        picture: bool,
        gap_ms: int,
    ) -> None:
        self.clock.ms += gap_ms
        self.count += 1
        images = (Image(data="aGk=", mime_type="image/png"),) if picture else ()
        one = submission(
            str(self.count),
            mode,
            session_key=session,
            token=token,
            origin=origin,
            images=images,
            meta={"goal_continuation": True} if goal else {},
        )
        self.world.open[one.run_id] = self.stored[one.run_id] = one
        taken = self.coordinator.submit(one, self.relay(one))
        if taken.reason is not None:
            del self.world.open[one.run_id]
            self.world.refused.add(one.run_id)
            assert self.coordinator.find(one.run_id) is None

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """The gateway executes: from now on the run may have had effects."""
        fresh = [p for p in self.hooks.processes.values() if not p.begun]
        if fresh:
            process = data.draw(st.sampled_from(fresh))
            process.begun = True
            self.world.begun.add(process.submission.run_id)
            self.world.execute(process.submission.command.prompt)

    @rule(data=st.data(), takes=st.booleans())
    def end(self, data: st.DataObject, takes: bool) -> None:
        if not self.hooks.processes:
            return
        run_id = data.draw(st.sampled_from(sorted(self.hooks.processes)))
        process = self.hooks.processes.pop(run_id)
        offered = [one for one, to in self.hooks.offered.items() if to == run_id]
        applied = offered if takes and process.begun else []
        for one in applied:
            self.world.execute(self.stored[one].command.prompt)
        for one in offered:
            del self.hooks.offered[one]
        self.world.end(run_id)
        self.coordinator.run_ended(run_id, applied)

    @rule(data=st.data(), accepted=st.booleans())
    def steer_answer(self, data: st.DataObject, accepted: bool) -> None:
        if not self.hooks.offered:
            return
        run_id = data.draw(st.sampled_from(sorted(self.hooks.offered)))
        active = self.hooks.processes[self.hooks.offered[run_id]]
        accepted = accepted and active.begun
        if accepted:
            self.world.execute(self.stored[run_id].command.prompt)
        self.hooks.offered.pop(run_id)
        self.coordinator.steer_answered(run_id, accepted=accepted)

    @rule(data=st.data(), token=st.sampled_from(TOKENS[1:]))
    def bind_late(self, data: st.DataObject, token: ResumeToken) -> None:
        """A run learns its token when it starts; with the token taken it waits before it begins."""
        fresh = [p for p in self.hooks.processes.values() if not p.begun]
        if fresh:
            process = data.draw(st.sampled_from(fresh))
            if process.submission.command.resume is None:
                run_id = process.submission.run_id
                if self.coordinator.claim_token(run_id, token):
                    process.submission = process.submission.resumed(token)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.count:
            run_id = str(data.draw(st.integers(1, self.count)))
            known = run_id in self.world.open
            assert self.coordinator.abort_run(run_id, "user_requested") == known

    @rule(session=st.sampled_from(SESSIONS))
    def abort_session(self, session: str) -> None:
        self.coordinator.abort_session(session, "user_requested")
        left = [s.run_id for s in self.world.open.values() if s.session_key == session]
        assert set(left) <= set(self.hooks.processes)

    @rule(session=st.sampled_from(SESSIONS))
    def session_goes(self, session: str) -> None:
        """Another router wants the session, and gets it while nothing of it runs."""
        if self.coordinator.active_run(session) is None:
            self.hooks.elsewhere.add(session)

    @rule(session=st.sampled_from(SESSIONS))
    def session_comes(self, session: str) -> None:
        self.hooks.elsewhere.discard(session)
        self.coordinator.release_held()

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        """Another router has adopted a run that waits here."""
        waiting = sorted(set(self.world.open) - set(self.hooks.processes))
        if waiting:
            run_id = data.draw(st.sampled_from(waiting))
            self.coordinator.abandon(run_id)
            self.hooks.offered.pop(run_id, None)
            self.world.end(run_id)

    @rule()
    def room(self) -> None:
        """The time has come to try held starts again."""
        for conversation in sorted(self.hooks.waiting_for_room):
            self.coordinator.start_again(conversation)

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The process is gone; the next one reads the records and goes on (section 9)."""
        lost = [run_id for run_id, p in self.hooks.processes.items() if p.begun]
        survive = data.draw(st.booleans()) if lost else False
        self.new_process()
        records = [self.whole(run_id) for run_id in self.world.open]
        for one in sorted(records, key=lambda s: s.order):
            if one.run_id in lost:
                self.hooks.former.add(one.run_id)
                self.coordinator.restore(one, self.relay(one))
        self.coordinator.release_held()
        for one in sorted(records, key=lambda s: s.order):
            if one.run_id not in lost:
                self.coordinator.restore(one, self.relay(one))
        self.coordinator.release_held()
        if not survive:
            # The gateway went down as well: what had begun is lost, and not executed again.
            for run_id in lost:
                del self.hooks.processes[run_id]
                self.world.end(run_id)
                self.coordinator.run_ended(run_id)

    def whole(self, run_id: str) -> Submission:
        """The record with what had joined it."""
        one = self.stored[run_id]
        for older, by in self.world.joined.items():
            if by == run_id:
                one = merged(self.whole(older), one)
        return replace(one, order=int(run_id))

    @invariant()
    def one_active_run_per_session_and_token(self) -> None:
        active = [p.submission for p in self.hooks.processes.values()]
        sessions = [s.session_key for s in active]
        tokens = [s.command.resume for s in active if s.command.resume is not None]
        assert len(set(sessions)) == len(sessions)
        assert len(set(tokens)) == len(tokens)
        assert not self.hooks.elsewhere & set(sessions)
        busy = {s: self.coordinator.active_run(s) for s in SESSIONS}
        assert {s: r for s, r in busy.items() if r} == {s.session_key: s.run_id for s in active}

    @invariant()
    def every_accepted_run_is_somewhere_or_over(self) -> None:
        accepted = {str(n) for n in range(1, self.count + 1)} - self.world.refused
        assert accepted == {*self.world.open} | self.world.ended | self.world.absorbed
        for run_id in self.world.open:
            assert self.coordinator.find(run_id) is not None
        waiting = self.coordinator.queued_count()
        assert waiting + len(self.hooks.processes) == len(self.world.open)

    @invariant()
    def nothing_waits_without_a_reason(self) -> None:
        """With nothing active, what waits waits for room and is tried again."""
        if not self.hooks.processes:
            reason = self.hooks.waiting_for_room or self.hooks.elsewhere
            assert self.coordinator.queued_count() == 0 or reason

    def teardown(self) -> None:
        """Everything comes to its end when runs do."""
        self.hooks.elsewhere.clear()
        self.coordinator.release_held()
        for _ in range(10 * self.count + 10):
            for run_id in sorted(self.hooks.processes):
                process = self.hooks.processes.pop(run_id)
                if not process.begun:
                    self.world.execute(process.submission.command.prompt)
                for one, to in list(self.hooks.offered.items()):
                    if to == run_id:
                        del self.hooks.offered[one]
                self.world.end(run_id)
                self.coordinator.run_ended(run_id)
            self.room()
        assert self.world.open == {}
        assert self.coordinator.conversations() == 0


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
