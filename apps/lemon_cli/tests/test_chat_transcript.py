"""What a conversation shows for the events of its runs (specification lemon_cli 6, 10.29)."""

from __future__ import annotations

from collections.abc import Mapping

from lemon_cli.chat.shown import (
    Asked,
    Began,
    Block,
    Live,
    Note,
    Piece,
    Said,
    Shown,
    Step,
    TurnEnd,
    Waits,
)
from lemon_cli.chat.spent import Spent, summary
from lemon_cli.chat.transcript import Transcript
from lemon_core.bridges import SubmitResult
from lemon_core.events import Event, PendingApproval, cast

DONE = {"ok": True, "answer": "Hi", "usage": {"input": 5, "output": 2, "context_tokens": 5}}


def taken(disposition: str) -> SubmitResult:
    return SubmitResult("accepted", detail={"disposition": disposition})


def feed(
    transcript: Transcript, run_id: str, *events: tuple[str, Mapping[str, object]]
) -> list[Shown]:
    shown: list[Shown] = []
    for event_type, payload in events:
        event = Event(event_type, 0, cast(event_type, payload), {})
        shown += transcript.event(run_id, event)
    return shown


def started(run_id: str = "run_1") -> Transcript:
    transcript = Transcript()
    transcript.sent(run_id, "hello")
    transcript.taken(run_id, taken("started"))
    return transcript


def delta(text: str) -> tuple[str, Mapping[str, object]]:
    return "delta", {"run_id": "run_1", "seq": 1, "text": text}


def step(phase: str, **more: object) -> tuple[str, Mapping[str, object]]:
    action = {"id": "tool_1", "kind": "command", "title": "`ls`", **more.pop("action", {})}  # type: ignore[dict-item]
    return "engine_action", {"action": action, "phase": phase, **more}


def test_a_turn_from_its_message_to_its_end() -> None:
    transcript = Transcript()
    assert transcript.sent("run_1", "hello") == [Said("hello")]
    assert transcript.taken("run_1", taken("started")) == []
    meta = {"meta": {"model": "m", "provider": "p"}}
    shown = feed(transcript, "run_1", ("engine_started", meta), delta("One.\n\nTw"))
    assert shown == [Piece("One.\n\nTw")]
    assert transcript.live() == Live(growing="One.\n\nTw", is_busy=True)
    shown = feed(transcript, "run_1", delta("o.\n"))
    assert shown == [Piece("o.\n"), Block("One.")]
    transcript.windows["p:m"] = 100
    end = {"completed": DONE, "duration_ms": 1200}
    assert feed(transcript, "run_1", ("run_completed", end)) == [
        Block("Two."),
        TurnEnd("p:m · 5 in, 2 out · context 5% of 100 · 1.2 s"),
    ]
    assert transcript.live() == Live()
    assert transcript.spent == Spent(1, 5, 2, 0, None, 5)


def test_an_answer_that_was_not_streamed_is_shown_once() -> None:
    shown = feed(started(), "run_1", ("run_completed", {"completed": DONE}))
    assert shown[:2] == [Piece("Hi"), Block("Hi")]


def test_a_tool_is_one_line_after_the_text_before_it() -> None:
    transcript = started()
    shown = feed(transcript, "run_1", delta("Let me look."), step("started"), step("updated"))
    assert shown == [Piece("Let me look."), Block("Let me look."), Began("`ls`")]
    assert transcript.live().steps == ("`ls`",)
    shown = feed(transcript, "run_1", step("completed", ok=True))
    assert shown == [Step("`ls`", True)]
    assert transcript.live().steps == ()


def test_a_failed_tool_says_why() -> None:
    detail = {"result": "no such file\nat all"}
    failed = step("completed", ok=False, action={"detail": detail})
    assert feed(started(), "run_1", failed) == [Step("`ls`", False, "no such file at all")]


def test_messages_beside_a_working_run_stand_before_their_own_answer() -> None:
    transcript = started()
    feed(transcript, "run_1", delta("begun"))
    assert transcript.sent("run_2", "later") == []
    assert transcript.taken("run_2", taken("queued")) == [Waits("later")]
    assert transcript.live().waiting == ("later",)
    feed(transcript, "run_1", ("run_completed", {"completed": DONE}))
    shown = feed(transcript, "run_2", ("run_started", {"run_id": "run_2"}), delta("x"))
    assert shown == [Said("later", is_late=True), Piece("x")]
    assert transcript.live().waiting == ()


def test_a_steer_is_said_when_the_run_takes_it_and_waits_when_not() -> None:
    transcript = started()
    for run_id, text in (("run_2", "left"), ("run_3", "right")):
        transcript.sent(run_id, text)
        transcript.taken(run_id, taken("steering"))
    absorbed = {"run_id": "run_2", "absorbed_by": "run_1", "mode": "steer"}
    assert feed(transcript, "run_2", ("run_absorbed", absorbed)) == [
        Said("left", how="taken by the working run", is_late=True)
    ]
    phase = {"run_id": "run_3", "phase": "queued_in_session", "source": "coordinator"}
    assert feed(transcript, "run_3", ("run_phase_changed", phase)) == [
        Note("not taken by the working run, queued: right")
    ]
    assert transcript.live().waiting == ("right",)


def test_ends_that_somebody_wanted_are_no_failures() -> None:
    failed = {"ok": False, "error": {"code": "x", "message": "no luck"}}
    shown = feed(started(), "run_1", ("run_completed", {"completed": failed}))
    assert shown == [Note("failed: no luck", "error")]
    failed = {"ok": False, "error": "interrupted"}
    shown = feed(started(), "run_1", ("run_completed", {"completed": failed}))
    assert shown == [Note("interrupted by a newer message", "warning")]
    transcript = started()
    transcript.turns["run_1"].abort_asked = True
    failed = {"ok": False, "error": "user_requested"}
    shown = feed(transcript, "run_1", ("run_completed", {"completed": failed}))
    assert shown == [Note("aborted", "warning")]


def test_a_question_is_open_until_somebody_answers() -> None:
    transcript = started()
    pending = PendingApproval(
        id="apr_1", tool="bash", run_id="run_1", action={"command": "rm x"}, decisions=["deny"]
    )
    action = {"id": "approval:apr_1", "kind": "approval", "detail": {"name": "bash"}}
    # Both tell of the same question; the second one knows what it takes.
    shown = feed(
        transcript,
        "run_1",
        step("started", action=action),
        ("approval_requested", {"approval_id": "apr_1", "pending": pending.model_dump()}),
    )
    assert len(shown) == 2
    assert shown[1] == Asked(pending)
    assert transcript.live().question == pending
    resolved = {"approval_id": "apr_1", "decision": "deny"}
    done = step("completed", action=action, ok=False, message="denied")
    assert feed(transcript, "run_1", ("approval_resolved", resolved), done) == [
        Note("bash: denied")
    ]
    assert transcript.live().question is None


def test_the_questions_of_a_run_end_with_it() -> None:
    transcript = started()
    pending = PendingApproval(id="apr_1", tool="bash", run_id="run_1").model_dump()
    feed(transcript, "run_1", ("approval_requested", {"approval_id": "apr_1", "pending": pending}))
    feed(transcript, "run_1", ("run_completed", {"completed": DONE}))
    assert transcript.questions == {}


def test_the_last_message_stands_apart_from_the_one_before() -> None:
    transcript = started()
    feed(transcript, "run_1", delta("Thinking about it"), delta("Hi"))
    shown = feed(transcript, "run_1", ("run_completed", {"completed": DONE}))
    assert shown[:2] == [Block("Thinking about it"), Block("Hi")]


def test_a_lost_run_keeps_what_there_was() -> None:
    transcript = started()
    feed(transcript, "run_1", delta("half"))
    assert transcript.lost("run_1", "gone") == [Block("half"), Note("gone", "error")]
    assert transcript.live() == Live()


def test_thinking_and_notices() -> None:
    transcript = started()
    thinking = {"id": "r", "kind": "reasoning"}
    assert feed(transcript, "run_1", step("started", action=thinking)) == []
    assert transcript.live().is_thinking
    feed(transcript, "run_1", step("completed", action=thinking))
    assert not transcript.live().is_thinking
    whole = "another model answers" + " x" * 99
    note = {"id": "n", "kind": "note", "title": whole}
    assert feed(transcript, "run_1", step("completed", action=note)) == [Note(whole)]
    assert feed(transcript, "run_1", step("completed", action=note)) == [Note(whole)]
    # Every run says which model stands in: here once is enough, until it is another.
    for title, shown in (("small", [Note("small")]), ("small", []), ("large", [Note("large")])):
        model = {"id": "lemon.model_notice", "kind": "note", "title": title}
        assert feed(transcript, "run_1", step("completed", action=model)) == shown


def test_a_summary_leaves_out_what_is_not_known() -> None:
    assert summary(None, model=None, window=None, duration_ms=None) == ""
    usage = {"input": 1, "cache_read": 2_000, "output": 3, "cost_usd": 1.5, "context_tokens": 2_001}
    assert (
        summary(usage, model="m", window=None, duration_ms=None)
        == "m · 1 in (+2,000 cached), 3 out · $1.50 · context 2,001 tokens"
    )
