"""Every call, the same in the process, on its socket and over TCP (specification 8)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from lemon_core.approvals import ApprovalRequest, Approved, Denied
from lemon_core.messages import InboundMessage
from lemon_core.runs import RunRequest
from lemon_router.tests.forms import FORMS, Calls, Form, Served, calls_of

pytestmark = pytest.mark.anyio

SESSION = "agent:default:main:sub:x"


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    form: Form = request.param
    return form


@pytest.fixture
async def reached(form: Form) -> AsyncIterator[tuple[Served, Calls]]:
    async with calls_of(form) as reached:
        yield reached


def request(run_id: str, **fields: object) -> RunRequest:
    return RunRequest.normalize(
        {"run_id": run_id, "origin": "node", "prompt": "hi", "session_key": SESSION, **fields}
    )


async def over(calls: Calls, run_id: str) -> None:
    """Return when the run has its end."""
    with anyio.fail_after(5):
        while await calls.admission(run_id) not in ("completed", "aborted", "failed", "absorbed"):
            await anyio.lowlevel.checkpoint()


@pytest.mark.behaviour("lemon_router.44")
async def test_runs_are_submitted_listed_and_shown(reached: tuple[Served, Calls]) -> None:
    s, calls = reached
    assert (await calls.submit_run(request("run_1"))).status == "accepted"
    await s.engine.wait_submitted("run_1")
    queued = await calls.submit_run(request("run_2", model="m"))
    assert queued.detail is not None
    assert queued.detail["disposition"] == "queued"
    assert await calls.active_run(SESSION) == "run_1"
    assert await calls.session_busy(SESSION)
    assert await calls.list_active_sessions() == [{"session_key": SESSION, "run_id": "run_1"}]
    assert (await calls.counts())["queued"] == 1
    assert [run.run_id for run in await calls.list_runs(states=["queued"])] == ["run_2"]
    (session,) = await calls.list_sessions(active_only=True)
    assert (session.active_run_id, session.queued_count) == ("run_1", 1)
    await s.play("run_1")
    await over(calls, "run_1")
    await s.play("run_2")
    await over(calls, "run_2")
    assert [run.run_id for run in await calls.list_runs(SESSION)] == ["run_2", "run_1"]
    shown = await calls.get_run("run_2")
    assert shown is not None
    assert (shown.state, shown.prompt, shown.model) == ("completed", "hi", "m")
    assert shown.completion is not None
    assert shown.completion.answer == "hello"
    assert await calls.get_run("run_9") is None
    assert await calls.admission("run_9") is None
    view = await calls.get_session(SESSION)
    assert view is not None
    assert view.info.run_count == 2
    assert [run.run_id for run in view.runs] == ["run_2", "run_1"]
    assert await calls.get_session("agent:default:main:sub:y") is None


@pytest.mark.behaviour("lemon_router.44")
async def test_a_working_run_is_steered_and_aborted(reached: tuple[Served, Calls]) -> None:
    s, calls = reached
    await calls.submit_run(request("run_1"))
    await s.engine.wait_submitted("run_1")
    s.engine.start("run_1")
    outcome = await calls.steer_run("run_1", "more", "steer", "run_s")
    assert (outcome.submission_run_id, outcome.accepted) == ("run_s", True)
    await calls.keep_run_alive("run_1", "continue")
    await calls.submit_run(request("run_2"))
    await calls.abort_run("run_2")
    await over(calls, "run_2")
    await calls.abort_session(SESSION, "new_session")
    with anyio.fail_after(5):
        while not s.engine.cancelled:
            await anyio.lowlevel.checkpoint()
    assert s.engine.cancelled[0] == ("run_1", "new_session")
    s.engine.complete("run_1", ok=False, error="new_session")
    await over(calls, "run_1")
    ended = await calls.get_run("run_2")
    assert ended is not None
    assert ended.state == "aborted"


@pytest.mark.behaviour("lemon_router.44")
async def test_sessions_are_set_and_reset(reached: tuple[Served, Calls]) -> None:
    s, calls = reached
    settings = await calls.patch_session(SESSION, model="m", thinking_level="high")
    assert (settings.model, settings.thinking_level) == ("m", "high")
    await calls.submit_run(request("run_1"))
    await s.play("run_1")
    await over(calls, "run_1")
    view = await calls.get_session(SESSION)
    assert view is not None
    assert (view.model, view.thinking_level) == ("m", "high")
    await calls.reset_session(SESSION)
    assert await calls.get_session(SESSION) is None
    assert await calls.list_sessions() == []
    forgotten = await calls.get_run("run_1")
    assert forgotten is not None
    assert forgotten.prompt == ""
    # The run id stays an idempotency key.
    assert (await calls.submit_run(request("run_1"))).duplicate


async def test_a_message_of_a_channel_becomes_one_run(
    reached: tuple[Served, Calls], form: Form
) -> None:
    _, calls = reached
    message = InboundMessage.model_validate(
        {
            "channel_id": "telegram",
            "account_id": "bot",
            "peer": {"kind": "dm", "id": "5"},
            "sender": {"id": "5"},
            "message": {"id": "m1", "text": "hi"},
        }
    )
    first = await calls.handle_inbound(message)
    if form == "tcp":  # this token's origins do not name it
        assert (first.status, first.reason) == ("rejected", "origin_not_allowed")
        return
    assert first.status == "accepted"
    again = await calls.handle_inbound(message)
    assert (again.run_id, again.duplicate) == (first.run_id, True)


@pytest.mark.behaviour("lemon_router.44")
async def test_questions_are_listed_and_answered_once(reached: tuple[Served, Calls]) -> None:
    s, calls = reached
    s.engine.on_this_bus = True
    answers: list[Approved | Denied] = []
    ask = ApprovalRequest(tool="bash", action={"command": "ls"}, run_id="run_1")

    async def asking() -> None:
        answers.append(await s.runtime.approvals.request(ask))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asking)
            while not (found := await calls.list_approvals()):
                await anyio.lowlevel.checkpoint()
            assert found[0].action == {"command": "ls"}
            assert await calls.resolve_approval(found[0].id, "approve_once")
            assert not await calls.resolve_approval(found[0].id, "deny")
    assert answers == [Approved("once")]
    assert await calls.list_approvals() == []
