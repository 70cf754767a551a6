"""What a call does next, without a line: conversation, interruption, goodbyes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lemon_gateway.voice.state import (
    APOLOGY,
    HISTORY_TURNS,
    LIMIT_GOODBYE,
    MARK_GRACE_MS,
    MAX_QUEUED_REPLIES,
    NO_KEY_APOLOGY,
    SILENCE_GOODBYE,
    Action,
    Ask,
    CallLimits,
    CallState,
    HangUp,
    Say,
    Silence,
    Turn,
    Utterance,
)

START_MS = 1_000
LIMITS = CallLimits(silence_ms=5_000, duration_ms=600_000)


def call() -> CallState:
    return CallState("CA1", "+15551230001", "+15551239999", LIMITS, START_MS)


def say(number: int, text: str) -> Say:
    return Say(Utterance(number, text))


def user(text: str) -> Turn:
    return Turn("user", text)


def heard(state: CallState, text: str, now_ms: int = 2_000) -> Sequence[Action]:
    return state.heard(text, is_final=True, now_ms=now_ms)


def test_a_call_has_the_session_of_its_caller() -> None:
    """Specification lemon_gateway 8: `voice:<from>`."""
    assert call().session_key == "voice:+15551230001"


def test_a_call_greets_and_speaks_until_the_mark_comes_back() -> None:
    """Specification lemon_gateway 8: greets on start; a mark is the end of speech."""
    state = call()
    assert state.greet("Hello", START_MS) == (say(1, "Hello"),)
    assert state.is_speaking
    assert state.played("utterance-1", 2_000) == ()
    assert (state.is_speaking, state.last_activity_at_ms) == (False, 2_000)


@pytest.mark.behaviour("lemon_gateway.35")
def test_a_final_transcript_is_asked_and_its_answer_spoken() -> None:
    """Specification lemon_gateway 8: history, model, speech."""
    state = call()
    assert heard(state, "  What time is it? ") == (Ask((user("What time is it?"),)),)
    assert state.is_processing
    assert state.answered("Noon.", 3_000) == (say(1, "Noon."),)
    assert list(state.history) == [user("What time is it?"), Turn("assistant", "Noon.")]
    assert not state.is_processing


def test_empty_and_interim_words_ask_nothing() -> None:
    """Specification lemon_gateway 8: final and not empty."""
    state = call()
    assert heard(state, "  ") == ()
    assert state.heard("What", is_final=False, now_ms=2_000) == ()
    assert list(state.history) == []


def test_the_model_sees_the_last_ten_turns() -> None:
    """Specification lemon_gateway 8: the last 10."""
    state = call()
    for number in range(12):
        heard(state, f"question {number}")
        state.answered(f"answer {number}", 2_000)
    (ask,) = heard(state, "the last question")
    assert isinstance(ask, Ask)
    assert len(ask.turns) == HISTORY_TURNS == 10
    assert ask.turns[-1] == user("the last question")
    assert ask.turns[0] == Turn("assistant", "answer 7")


def test_what_is_said_while_the_model_thinks_is_the_next_question() -> None:
    """One question at a time; nothing that was said is lost."""
    state = call()
    heard(state, "One")
    assert heard(state, "two") == ()
    assert heard(state, "three") == ()
    assert state.answered("First.", 3_000) == (
        say(1, "First."),
        Ask((user("One"), Turn("assistant", "First."), user("two three"))),
    )


@pytest.mark.behaviour("lemon_gateway.34")
def test_replies_wait_in_line_while_the_call_speaks_and_marks_advance_the_line() -> None:
    """Specification lemon_gateway 8: replies queue FIFO while speaking."""
    state = call()
    state.greet("Hello", START_MS)
    for number in (1, 2):
        heard(state, f"question {number}")
        assert state.answered(f"answer {number}", 2_000) == ()
    assert list(state.response_queue) == ["answer 1", "answer 2"]
    assert state.played("utterance-1", 3_000) == (say(2, "answer 1"),)
    assert state.played("utterance-2", 4_000) == (say(3, "answer 2"),)
    assert state.played("utterance-3", 5_000) == ()


def test_the_line_of_replies_is_bounded() -> None:
    """A model that answers faster than it can be spoken fills no memory."""
    state = call()
    state.greet("Hello", START_MS)
    for number in range(MAX_QUEUED_REPLIES + 5):
        heard(state, f"question {number}")
        state.answered(f"answer {number}", 2_000)
    assert len(state.response_queue) == MAX_QUEUED_REPLIES


@pytest.mark.behaviour("lemon_gateway.34")
def test_an_interim_transcript_while_speaking_interrupts() -> None:
    """Specification lemon_gateway 8: clear, and drop what is queued."""
    state = call()
    state.greet("Hello", START_MS)
    heard(state, "question")
    state.answered("answer", 2_000)
    assert state.heard("wait", is_final=False, now_ms=2_500) == (Silence(),)
    assert not state.is_speaking
    assert not state.response_queue
    # The mark of what was dropped comes back all the same, and says nothing about what follows.
    heard(state, "another question")
    assert state.answered("another answer", 3_000) == (say(2, "another answer"),)
    assert state.played("utterance-1", 3_100) == ()
    assert state.is_speaking


def test_an_empty_interim_transcript_does_not_interrupt() -> None:
    """Specification lemon_gateway 8: only words interrupt."""
    state = call()
    state.greet("Hello", START_MS)
    assert state.heard(" ", is_final=False, now_ms=2_000) == ()
    assert state.is_speaking


@pytest.mark.behaviour("lemon_gateway.35")
@pytest.mark.parametrize(
    ("code", "apology"),
    [("missing_api_key", NO_KEY_APOLOGY), ("api_error", APOLOGY), ("request_failed", APOLOGY)],
)
def test_a_failure_of_the_model_is_spoken(code: str, apology: str) -> None:
    """Specification lemon_gateway 8: a short apology, another one without a key."""
    assert len({APOLOGY, NO_KEY_APOLOGY}) == 2
    state = call()
    heard(state, "question")
    assert state.unanswered(code, 3_000) == (say(1, apology),)
    assert list(state.history) == [user("question")]


def test_an_empty_answer_says_nothing_and_the_call_goes_on() -> None:
    """There is nothing to speak of."""
    state = call()
    heard(state, "question")
    assert state.answered(" ", 3_000) == ()
    assert heard(state, "again") != ()


@pytest.mark.behaviour("lemon_gateway.35")
def test_what_could_not_be_spoken_is_passed_over() -> None:
    """Specification lemon_gateway 8: speech that fails moves on."""
    state = call()
    state.greet("Hello", START_MS)
    heard(state, "question", now_ms=1_500)
    state.answered("answer", 2_000)
    before = state.last_activity_at_ms
    assert state.not_spoken(1) == (say(2, "answer"),)
    assert state.not_spoken(2) == ()
    assert state.not_spoken(2) == ()
    assert (state.is_speaking, state.last_activity_at_ms) == (False, before)


@pytest.mark.behaviour("lemon_gateway.35")
def test_silence_of_both_sides_comes_to_a_goodbye() -> None:
    """Specification lemon_gateway 8: no speech for `silence_timeout_ms`."""
    state = call()
    state.greet("Hello", START_MS)
    assert state.ticked(100_000) == ()  # its own speech is no silence
    state.played("utterance-1", 100_000)
    assert state.ticked(104_999) == ()
    assert state.ticked(105_000) == (say(2, SILENCE_GOODBYE), HangUp())
    assert state.leaving


def test_a_model_that_thinks_is_no_silence() -> None:
    """A caller who waits for an answer is not hung up on."""
    state = call()
    heard(state, "question")
    assert state.ticked(60_000) == ()


def test_words_of_the_caller_are_no_silence() -> None:
    """Specification lemon_gateway 8: speech by either side counts."""
    state = call()
    state.heard("well", is_final=False, now_ms=5_500)
    assert state.ticked(10_499) == ()
    assert state.ticked(10_500) != ()


@pytest.mark.behaviour("lemon_gateway.35")
def test_a_call_that_is_too_long_is_ended_in_the_middle_of_speech() -> None:
    """Specification lemon_gateway 8: `max_call_duration_seconds`."""
    state = call()
    state.greet("Hello", START_MS)
    assert state.ticked(START_MS + 599_999) == ()
    assert state.ticked(START_MS + 600_000) == (Silence(), say(2, LIMIT_GOODBYE), HangUp())


def test_after_the_goodbye_nothing_is_asked_or_answered() -> None:
    """Specification lemon_gateway 8: hang up 3 s later, whatever comes."""
    state = call()
    heard(state, "question")
    state.ticked(START_MS + 600_000)
    assert heard(state, "wait", 700_000) == ()
    assert state.answered("answer", 700_000) == ()
    assert state.ticked(2_000_000) == ()


def test_a_mark_that_got_lost_does_not_silence_the_call() -> None:
    """The end of an utterance is known without its mark, a while later."""
    state = call()
    state.greet("Hello", START_MS)
    heard(state, "question", 1_500)
    state.answered("answer", 2_000)
    state.sent(1, until_ms=3_000)
    assert state.ticked(3_000 + MARK_GRACE_MS) == ()
    assert state.ticked(3_001 + MARK_GRACE_MS) == (say(2, "answer"),)


def test_what_was_dropped_is_not_sent_any_more() -> None:
    """A late word about an utterance that is over changes nothing."""
    state = call()
    state.greet("Hello", START_MS)
    state.heard("wait", is_final=False, now_ms=2_000)
    state.sent(1, until_ms=3_000)
    assert state.current_utterance is None


class Calls(RuleBasedStateMachine):
    """Any order of what can happen in a call."""

    def __init__(self) -> None:
        super().__init__()
        self.state = call()
        self.now_ms = START_MS
        self.asked = 0
        self.spoken = 0
        self.hung_up = 0
        self.take(self.state.greet("Hello", START_MS))

    def take(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Ask(turns):
                    self.asked += 1
                    assert turns[-1].role == "user"
                case Say(utterance):
                    assert utterance.number == self.spoken + 1
                    self.spoken += 1
                case HangUp():
                    self.hung_up += 1
                case Silence():
                    pass

    @rule(text=st.sampled_from(["", "word", "a few words"]), is_final=st.booleans())
    def hear(self, text: str, is_final: bool) -> None:
        self.take(self.state.heard(text, is_final=is_final, now_ms=self.now_ms))

    @rule(text=st.sampled_from(["", "answer"]))
    def answer(self, text: str) -> None:
        if self.asked:
            self.asked -= 1
            self.take(self.state.answered(text, self.now_ms))

    @rule()
    def fail(self) -> None:
        if self.asked:
            self.asked -= 1
            self.take(self.state.unanswered("api_error", self.now_ms))

    @rule(back=st.integers(0, 2))
    def play(self, back: int) -> None:
        self.take(self.state.played(f"utterance-{self.spoken - back}", self.now_ms))

    @rule(back=st.integers(0, 2))
    def drop(self, back: int) -> None:
        self.take(self.state.not_spoken(self.spoken - back))

    @rule(ms=st.integers(0, 20_000))
    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.take(self.state.ticked(self.now_ms))

    @invariant()
    def one_question_is_open_while_the_call_processes(self) -> None:
        assert self.asked == int(self.state.is_processing)

    @invariant()
    def the_newest_utterance_is_the_one_that_is_spoken(self) -> None:
        current = self.state.current_utterance
        assert current is None or current.number == self.spoken

    @invariant()
    def replies_wait_only_behind_an_utterance(self) -> None:
        assert self.state.is_speaking or not self.state.response_queue

    @invariant()
    def it_hangs_up_once_and_with_its_goodbye(self) -> None:
        assert self.hung_up == int(self.state.leaving)


Calls.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestCalls = Calls.TestCase
