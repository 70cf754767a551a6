"""The Basic renderer (specification lemon_gateway 10)."""

from __future__ import annotations

from lemon_core.events import (
    Action,
    Completion,
    Delta,
    EngineAction,
    EngineStarted,
    Event,
    RunCompleted,
    RunStarted,
)
from lemon_core.resume import ResumeToken
from lemon_gateway.render import Basic, Rendered

TOKEN = ResumeToken(engine="lemon", value="sess_1")


def render(*payloads: object, title: str | None = None) -> list[Rendered | None]:
    basic = Basic()
    state, shown = basic.init({"title": title}), []
    for payload in payloads:
        state, rendered = basic.apply_event(state, Event("x", 0, payload, {}))
        shown.append(rendered)
    return shown


def action(name: str, phase: str = "started", ok: bool | None = None) -> EngineAction:
    return EngineAction(
        action=Action(id=name, kind="tool", title=name),
        phase=phase,
        ok=ok,
    )


def ended(ok: bool, error: str | dict[str, object] | None = None, answer: str = "") -> RunCompleted:
    return RunCompleted(completed=Completion(ok=ok, error=error, answer=answer, resume=TOKEN))


def test_a_run_from_its_start_to_its_answer() -> None:
    """Header, action lines in first-seen order, resume line; what did not change is not repeated"""
    shown = render(
        RunStarted(run_id="r"),
        EngineStarted(resume=TOKEN),
        action("read"),
        action("bash"),
        action("bash"),
        action("read", "completed", True),
        action("bash", "completed", False),
        Delta(run_id="r", seq=1, text="It is "),
        Delta(run_id="r", seq=2, text="done."),
        ended(True),
        title="Tidy up",
    )
    head, resume = "Running: Tidy up", "lemon resume sess_1"
    assert shown == [
        Rendered(head, "running"),
        Rendered(f"{head}\n\n{resume}", "running"),
        Rendered(f"{head}\n- read: started\n\n{resume}", "running"),
        Rendered(f"{head}\n- read: started\n- bash: started\n\n{resume}", "running"),
        None,
        Rendered(f"{head}\n- read: completed\n- bash: started\n\n{resume}", "running"),
        Rendered(f"{head}\n- read: completed\n- bash: failed\n\n{resume}", "running"),
        None,
        None,
        Rendered(
            f"Done: Tidy up\n- read: completed\n- bash: failed\n\nIt is done.\n\n{resume}", "done"
        ),
    ]


def test_every_end_has_its_status() -> None:
    """`user_requested` and `interrupted` render as cancelled."""
    resume = "lemon resume sess_1"
    assert render(ended(False, "user_requested")) == [
        Rendered(f"Cancelled\n\n{resume}", "cancelled")
    ]
    assert render(ended(False, {"code": "interrupted"})) == [
        Rendered(f"Cancelled\n\n{resume}", "cancelled")
    ]
    assert render(ended(False, {"code": "lock_timeout"}, "half")) == [
        Rendered(f"Failed\n\nlock_timeout\n\nhalf\n\n{resume}", "error")
    ]
    assert render(ended(True, answer="whole")) == [Rendered(f"Done\n\nwhole\n\n{resume}", "done")]
