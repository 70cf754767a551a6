"""Messages that meet an active run (specification lemon_router 4)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from lemon_core.bridges import SubmitResult
from lemon_core.bus import run_topic, session_topic
from lemon_core.events import Completion, Event, RunAbsorbed, RunCompleted
from lemon_core.resume import ChatState, ResumeToken
from lemon_core.runs import QUEUE_MODES
from lemon_router.queue_state import QueueRules
from lemon_router.tests.rig import SESSION, TOKEN, Rig, phases, rig, until_end

pytestmark = pytest.mark.anyio

OTHER = "agent:default:main:sub:other"
STEERS = ("steer", "steer_backlog", "redirect")


async def active(r: Rig, run_id: str = "run_1", **fields: object) -> None:
    """A run that the gateway works on."""
    assert (await r.submit(run_id, **fields)).status == "accepted"
    await r.engine.wait_submitted(run_id)
    r.engine.start(run_id)


async def settled() -> None:
    """The tasks that are ready have run."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


@pytest.mark.behaviour("lemon_router.16")
@pytest.mark.behaviour("lemon_router.22")
@pytest.mark.parametrize("mode", STEERS)
async def test_a_taken_steer_is_absorbed_and_its_waiter_goes_on(mode: str, tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r)
        with r.bus.watch_run("run_2") as waiter, r.bus.subscribe(run_topic("run_2")) as events:
            result = await r.submit("run_2", prompt="left!", queue_mode=mode)
            assert result.detail == {"disposition": "steering", "active_run_id": "run_1"}
            await settled()
            assert r.engine.steers == [("run_1", "run_2", "left!", mode)]
            assert await r.router.admission("run_2") == "absorbed"
            record = await r.router.record("run_2")
            assert record is not None
            assert (record.absorbed_by, record.absorbed_as) == ("run_1", mode)
            assert phases(await until_end(events)) == ["aborted"]
            r.engine.complete("run_1", answer="went left")
            with anyio.fail_after(5):
                end = await waiter.completion(5_000)
        assert isinstance(end, Completion)
        assert (end.run_id, end.answer) == ("run_1", "went left")
        await r.router.drained()
        assert r.engine.submitted == ["run_1"]
        assert ("lemon.router.steer", {"mode": mode, "result": "accepted"}) in r.seen.emitted


@pytest.mark.behaviour("lemon_router.16")
@pytest.mark.parametrize("mode", STEERS)
async def test_a_refused_steer_runs_next_and_once(mode: str, tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.takes_steers = False
        await active(r)
        await r.submit("run_2", prompt="left!", queue_mode=mode)
        await settled()
        assert await r.router.admission("run_2") == "queued"
        r.engine.complete("run_1")
        run = await r.engine.wait_submitted("run_2")
        assert run.command.prompt == "left!"
        r.engine.complete("run_2")
        await r.router.drained()
        assert r.engine.submitted == ["run_1", "run_2"]


@pytest.mark.behaviour("lemon_router.16")
@pytest.mark.behaviour("lemon_router.17")
async def test_a_steer_without_an_answer_is_offered_once_more_and_settled_at_the_end(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        r.engine.mute_steers = 2
        await active(r)
        await r.submit("run_2", prompt="left!", queue_mode="steer")
        for _ in range(2):
            await settled()
            await r.clock.advance(5_000)
        assert [s[1] for s in r.engine.steers] == ["run_2", "run_2"]
        assert await r.router.admission("run_2") == "accepted"
        assert (await r.router.counts())["queued"] == 1
        r.engine.complete("run_1")
        await r.router.drained()
        assert await r.router.admission("run_2") == "absorbed"
        assert r.engine.submitted == ["run_1"]


@pytest.mark.behaviour("lemon_router.16")
@pytest.mark.behaviour("lemon_router.17")
async def test_a_steer_that_never_arrived_runs_when_the_run_has_ended(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r)
        r.engine.is_away = True
        await r.submit("run_2", prompt="left!", queue_mode="steer")
        await settled()
        assert r.engine.steers == []
        r.engine.complete("run_1")
        await settled()
        # Whether it was taken is not known yet: it neither runs nor counts as taken.
        assert r.engine.submitted == ["run_1"]
        r.engine.is_away = False
        await r.clock.advance(2_000)
        await r.engine.wait_submitted("run_2")


@pytest.mark.behaviour("lemon_router.103")
@pytest.mark.parametrize("mode", STEERS)
@pytest.mark.parametrize("steer_first", [True, False])
async def test_a_steer_in_the_instant_of_the_end_runs_once(
    mode: str, steer_first: bool, tmp_path: Path
) -> None:
    """Field report: a steer aimed at a run that has just ended is dropped."""
    async with rig(tmp_path) as r:
        await active(r)
        async with anyio.create_task_group() as tasks:
            if not steer_first:
                r.engine.complete("run_1")
            tasks.start_soon(lambda: r.submit("run_2", prompt="left!", queue_mode=mode))
            if steer_first:
                tasks.start_soon(anyio.lowlevel.checkpoint)
                await anyio.lowlevel.checkpoint()
                r.engine.complete("run_1")
        await settled()
        if await r.router.admission("run_2") != "absorbed":
            run = await r.engine.wait_submitted("run_2")
            assert run.command.prompt == "left!"
            assert r.engine.runs["run_1"].applied == []
        else:
            assert r.engine.runs["run_1"].applied == ["run_2"]
        assert r.engine.submitted.count("run_2") <= 1


@pytest.mark.behaviour("lemon_router.101")
@pytest.mark.parametrize("mode", QUEUE_MODES)
@pytest.mark.parametrize("error", ["timeout", "user_requested"])
async def test_a_message_behind_a_run_that_hits_its_limit_or_is_aborted_runs_next(
    mode: str, error: str, tmp_path: Path
) -> None:
    """Field report: messages queued behind such a run disappear."""
    async with rig(tmp_path) as r:
        r.engine.takes_steers = False
        await active(r)
        await r.submit("run_2", prompt="and then?", queue_mode=mode)
        await settled()
        if error == "user_requested":
            await r.router.abort_run("run_1")
        r.engine.complete("run_1", ok=False, error=error)
        run = await r.engine.wait_submitted("run_2")
        assert run.command.prompt == "and then?"


@pytest.mark.behaviour("lemon_router.12")
@pytest.mark.behaviour("lemon_router.22")
async def test_joined_followups_run_as_one_and_the_older_is_absorbed(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r)
        with r.bus.subscribe(run_topic("run_2")) as older:
            await r.submit("run_2", prompt="a", queue_mode="followup")
            result = await r.submit("run_3", prompt="b", queue_mode="followup")
            seen = await until_end(older)
        assert result.detail == {
            "disposition": "merged",
            "position": 1,
            "active_run_id": "run_1",
            "merged": ["run_2"],
        }
        assert phases(seen) == ["queued_in_session", "aborted"]
        assert isinstance(seen[-1].payload, RunAbsorbed)
        assert (seen[-1].payload.absorbed_by, seen[-1].payload.mode) == ("run_3", "followup")
        r.engine.complete("run_1")
        run = await r.engine.wait_submitted("run_3")
        assert run.command.prompt == "a\nb"
        assert await r.router.admission("run_2") == "absorbed"
        assert r.engine.submitted == ["run_1", "run_3"]


@pytest.mark.behaviour("lemon_router.15")
async def test_an_interrupt_cancels_runs_next_and_keeps_the_rest(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r)
        await r.submit("run_2")
        result = await r.submit("run_3", queue_mode="interrupt")
        assert result.detail is not None
        assert (result.detail["disposition"], result.detail["position"]) == ("queued", 1)
        await r.clock.wait_for_sleepers(2)
        assert r.engine.cancelled == [("run_1", "interrupted")]
        r.engine.complete("run_1", ok=False, error="interrupted")
        await r.engine.wait_submitted("run_3")
        assert await r.router.admission("run_1") == "aborted"
        r.engine.complete("run_3")
        await r.engine.wait_submitted("run_2")


@pytest.mark.behaviour("lemon_router.106")
async def test_a_followup_leaves_a_long_tool_alone(tmp_path: Path) -> None:
    """Field report: a queue-mode message kills a long tool."""
    async with rig(tmp_path) as r:
        await active(r)
        await r.submit("run_2", queue_mode="followup")
        await settled()
        assert (r.engine.cancelled, r.engine.steers) == ([], [])
        assert await r.router.active_run(SESSION) == "run_1"


@pytest.mark.behaviour("lemon_router.18")
async def test_every_dropped_run_ends_once_and_is_let_go_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.mute_steers = 9
        await active(r)
        await active(r, "run_9", session_key=OTHER)
        await r.submit("run_2")
        await r.submit("run_3", queue_mode="steer")
        ends: dict[str, list[Event]] = {}
        with (
            r.bus.subscribe(run_topic("run_2")) as second,
            r.bus.subscribe(run_topic("run_3")) as third,
        ):
            await r.router.abort_session(SESSION)
            ends["run_2"], ends["run_3"] = await until_end(second), await until_end(third)
        for run_id, seen in ends.items():
            end = seen[-1].payload
            assert isinstance(end, RunCompleted)
            assert (end.completed.ok, end.completed.error) == (False, "user_requested")
            assert end.completed.meta == {"synthetic": True}
            assert phases(seen)[-1] == "aborted"
            await settled()
            assert await r.router.admission(run_id) == "aborted"
        await r.clock.wait_for_sleepers(2)
        assert r.engine.cancelled == [("run_1", "user_requested")]
        assert await r.router.active_run(OTHER) == "run_9"
        r.engine.complete("run_1", ok=False, error="user_requested")
        r.engine.complete("run_9")
        await r.router.drained()
        followers = r.seen.followers
        assert sorted(followers.unsubscribed) == sorted(followers.subscribed)
        assert len(set(followers.unsubscribed)) == 4


@pytest.mark.behaviour("lemon_router.4")
async def test_a_message_without_room_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path, limit=1) as r:
        results: dict[str, SubmitResult] = {}

        async def submit(run_id: str, session: str) -> None:
            results[run_id] = await r.submit(run_id, session_key=session)

        async with anyio.create_task_group() as tasks:
            # Both find room before they are stored, and only one when they start.
            tasks.start_soon(submit, "run_1", SESSION)
            tasks.start_soon(submit, "run_2", OTHER)
        words = sorted((result.status, result.reason) for result in results.values())
        assert words == [("accepted", None), ("rejected", "run_capacity_reached")]
        refused = next(run_id for run_id, result in results.items() if result.reason)
        assert await r.router.admission(refused) is None
        assert not r.router.journal.known(refused)
        assert r.seen.followers.unsubscribed.count(refused) == r.seen.followers.subscribed.count(
            refused
        )
        again = await r.submit("run_3", session_key=OTHER)
        assert (again.status, again.reason) == ("rejected", "run_capacity_reached")
        # A message behind an active run needs no room now.
        first = next(run_id for run_id, result in results.items() if not result.reason)
        session = SESSION if first == "run_1" else OTHER
        assert (await r.submit("run_4", session_key=session)).status == "accepted"


@pytest.mark.behaviour("lemon_router.21")
async def test_a_queued_run_without_room_is_tried_again(tmp_path: Path) -> None:
    async with rig(tmp_path, limit=2) as r:
        await active(r)
        await active(r, "run_2", session_key=OTHER)
        await r.submit("run_3")
        await r.submit("run_4", session_key=OTHER)
        # A run of a former process is taken without asking for room: now there is none.
        former = "agent:default:main:sub:former"
        await r.submit("run_5", session_key=former)
        r.engine.complete("run_1")
        await r.engine.wait_submitted("run_3")
        assert (await r.router.counts())["active"] == 2


@pytest.mark.behaviour("lemon_router.19")
async def test_a_token_that_appears_between_two_messages_does_not_split_a_session(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        meta = {"auto_resume": True}
        await active(r, meta=meta)
        state = ChatState(last_engine="lemon", last_resume_token=TOKEN.value)
        await r.chat_states.put(SESSION, state)
        await r.submit("run_2", meta=meta)
        assert r.engine.submitted == ["run_1"]
        r.engine.complete("run_1")
        await r.engine.wait_submitted("run_2")
        # Bound late, the second run holds the token as if it had named it.
        await r.submit("run_3", session_key=OTHER, resume=TOKEN)
        await settled()
        assert r.engine.submitted == ["run_1", "run_2"]
        r.engine.complete("run_2")
        await r.engine.wait_submitted("run_3")


@pytest.mark.behaviour("lemon_router.19")
async def test_sessions_that_share_a_token_and_tokens_that_share_a_session_take_turns(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        second = ResumeToken(engine="lemon", value="sess_2")
        await active(r, resume=TOKEN)
        await r.submit("run_2", session_key=OTHER, resume=TOKEN)
        await r.submit("run_3", resume=second)
        await settled()
        assert r.engine.submitted == ["run_1"]
        r.engine.complete("run_1")
        await r.engine.wait_submitted("run_2")
        await r.engine.wait_submitted("run_3")
        assert r.engine.submitted[0] == "run_1"


@pytest.mark.behaviour("lemon_router.19")
async def test_a_run_bound_late_waits_for_another_session_with_its_token(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await active(r, "run_1", session_key=OTHER, resume=TOKEN)
        meta = {"auto_resume": True}
        await active(r, "run_2")
        await r.submit("run_3", meta=meta)
        state = ChatState(last_engine="lemon", last_resume_token=TOKEN.value)
        await r.chat_states.put(SESSION, state)
        r.engine.complete("run_2")
        await settled()
        assert r.engine.submitted == ["run_1", "run_2"]
        r.engine.complete("run_1")
        run = await r.engine.wait_submitted("run_3")
        assert run.command.resume == TOKEN


@pytest.mark.behaviour("lemon_router.22")
async def test_the_phases_of_a_run_that_waited_and_of_one_that_fell_back(tmp_path: Path) -> None:
    whole = ["dispatched_to_gateway", "starting_engine", "streaming", "finalizing", "completed"]
    async with rig(tmp_path) as r:
        r.engine.takes_steers = False
        await active(r)
        with r.bus.subscribe(session_topic(SESSION)) as events:
            await r.submit("run_2")
            await r.submit("run_3", queue_mode="steer")
            await settled()
            for run_id in ("run_1", "run_2", "run_3"):
                await r.engine.wait_submitted(run_id)
                if run_id != "run_1":
                    r.engine.start(run_id)
                r.engine.delta(run_id, 1, "x")
                r.engine.complete(run_id)
            seen = [event for _ in range(3) for event in await until_end(events)]
        for run_id in ("run_2", "run_3"):
            of_run = [event for event in seen if event.meta["run_id"] == run_id]
            assert phases(of_run) == ["queued_in_session", "waiting_for_slot", *whole]


@pytest.mark.behaviour("lemon_router.23")
async def test_nothing_is_kept_of_conversations_that_are_idle(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        coordinator = r.router._lifecycle.coordinator
        for number in range(5):
            run_id, session = f"run_{number}", f"agent:default:main:sub:s{number}"
            await active(r, run_id, session_key=session)
            assert await r.router.session_busy(session)
            assert await r.router.list_active_sessions() == [
                {"session_key": session, "run_id": run_id}
            ]
            r.engine.complete(run_id)
            await r.router.drained()
            assert not await r.router.session_busy(session)
            assert (coordinator.conversations(), coordinator.queued_count()) == (0, 0)


@pytest.mark.behaviour("lemon_router.104")
async def test_what_is_dropped_past_the_cap_ends_with_a_notice(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=QueueRules(cap=2, drop="oldest")) as r:
        await active(r)
        with r.bus.subscribe(run_topic("run_2")) as events:
            for number in (2, 3, 4):
                assert (await r.submit(f"run_{number}")).status == "accepted"
            end = (await until_end(events))[-1].payload
        assert isinstance(end, RunCompleted)
        assert end.completed.error == "queue_full"
        await settled()
        assert await r.router.admission("run_2") == "failed"
    async with rig(tmp_path, rules=QueueRules(cap=1, drop="reject")) as r:
        await active(r)
        await r.submit("run_2")
        full = await r.submit("run_3")
        assert (full.status, full.reason) == ("rejected", "queue_full")
        assert await r.router.admission("run_3") is None
