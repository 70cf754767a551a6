"""The queue reducer for mode `collect` (specification lemon_router 4)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lemon_core.runs import ExecutionCommand
from lemon_router import queue
from lemon_router.queue import CancelActive, Dropped, QueueState, Start, Step
from lemon_router.requests import Submission


def submission(run_id: str, session_key: str = "agent:a:main") -> Submission:
    command = ExecutionCommand(run_id=run_id, session_key=session_key, prompt=run_id)
    return Submission(command, ("session", session_key), "collect", resume_is_explicit=False)


ONE, TWO, THREE = submission("1"), submission("2"), submission("3", "agent:b:main")


def test_an_idle_conversation_starts_at_once() -> None:
    assert queue.submit(QueueState(), ONE) == Step(QueueState(active=ONE), (Start(ONE),))


def test_a_busy_conversation_keeps_the_order() -> None:
    state = QueueState(active=ONE)
    state = queue.submit(state, TWO).state
    step = queue.submit(state, THREE)
    assert step == Step(QueueState(active=ONE, waiting=(TWO, THREE)))
    assert queue.run_ended(step.state, "1") == Step(
        QueueState(active=TWO, waiting=(THREE,)), (Start(TWO),)
    )


def test_late_news_of_another_run_changes_nothing() -> None:
    state = QueueState(active=TWO, waiting=(THREE,))
    assert queue.run_ended(state, "1") == Step(state)
    assert queue.run_ended(QueueState(), "1") == Step(QueueState())


def test_aborting_a_run_cancels_or_drops_it() -> None:
    state = QueueState(active=ONE, waiting=(TWO, THREE))
    assert queue.abort_run(state, "1", "x") == Step(state, (CancelActive("1", "x"),))
    assert queue.abort_run(state, "2", "x") == Step(
        QueueState(active=ONE, waiting=(THREE,)), (Dropped((TWO,), "x"),)
    )
    assert queue.abort_run(state, "9", "x") == Step(state)


def test_aborting_a_session_leaves_the_others_of_a_shared_conversation() -> None:
    state = QueueState(active=ONE, waiting=(TWO, THREE))
    assert queue.abort_session(state, "agent:a:main", "x") == Step(
        QueueState(active=ONE, waiting=(THREE,)), (Dropped((TWO,), "x"), CancelActive("1", "x"))
    )
    assert queue.abort_session(state, "agent:b:main", "x") == Step(
        QueueState(active=ONE, waiting=(TWO,)), (Dropped((THREE,), "x"),)
    )


class QueueMachine(RuleBasedStateMachine):
    """Random submissions, ends and aborts: each run starts at most once and has one end."""

    def __init__(self) -> None:
        super().__init__()
        self.state = QueueState()
        self.submitted: list[str] = []
        self.started: list[str] = []
        self.ended: set[str] = set()

    def apply(self, step: Step) -> None:
        self.state = step.state
        for effect in step.effects:
            if isinstance(effect, Start):
                assert effect.submission.run_id not in self.started
                self.started.append(effect.submission.run_id)
            elif isinstance(effect, Dropped):
                for dropped in effect.submissions:
                    assert dropped.run_id not in self.started
                    assert dropped.run_id not in self.ended
                    self.ended.add(dropped.run_id)
            else:
                assert effect.run_id not in self.ended

    @rule(session=st.sampled_from(["agent:a:main", "agent:b:main"]))
    def submit(self, session: str) -> None:
        run_id = str(len(self.submitted))
        self.submitted.append(run_id)
        self.apply(queue.submit(self.state, submission(run_id, session)))

    @rule()
    def end_active(self) -> None:
        if self.state.active is not None:
            run_id = self.state.active.run_id
            self.ended.add(run_id)
            self.apply(queue.run_ended(self.state, run_id))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.submitted:
            run_id = data.draw(st.sampled_from(self.submitted))
            self.apply(queue.abort_run(self.state, run_id, "user_requested"))

    @rule(session=st.sampled_from(["agent:a:main", "agent:b:main"]))
    def abort_session(self, session: str) -> None:
        self.apply(queue.abort_session(self.state, session, "user_requested"))

    @invariant()
    def every_run_is_waiting_active_or_ended(self) -> None:
        waiting = [s.run_id for s in self.state.waiting]
        active = [] if self.state.active is None else [self.state.active.run_id]
        assert sorted([*waiting, *active, *self.ended]) == sorted(self.submitted)

    @invariant()
    def runs_start_in_the_order_of_submission(self) -> None:
        assert self.started == sorted(self.started, key=int)

    @invariant()
    def nothing_waits_for_an_idle_conversation(self) -> None:
        assert self.state.active is not None or not self.state.waiting


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=30)
