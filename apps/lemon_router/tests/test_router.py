"""Admission, conversations and run processes together (specification lemon_router 2 to 5)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from lemon_core.bridges import ExecutionRejected, SubmitResult
from lemon_core.bus import run_topic, session_topic
from lemon_core.events import Completion, Event, RunCompleted
from lemon_core.resume import ChatState, ResumeToken
from lemon_core.runs import InvalidCommand, RunRequest
from lemon_core.store import PolicyStore
from lemon_router.tests.rig import SESSION, TOKEN, phases, rig, until_end

pytestmark = pytest.mark.anyio

STARTED = SubmitResult("accepted", "run_1", detail={"disposition": "started"})


@pytest.mark.behaviour("lemon_router.43")
async def test_a_run_is_relayed_numbered_and_recorded(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        with r.bus.subscribe(session_topic(SESSION)) as session:
            assert await r.submit("run_1") == STARTED
            run = await r.engine.wait_submitted("run_1")
            assert run.command.conversation_key == ("session", SESSION)
            context = run.command.execution_context
            assert context is not None
            assert context.workspace.cwd == str(tmp_path)
            assert context.principal.kind == "operator"
            r.engine.start("run_1")
            r.engine.delta("run_1", 1, "do")
            r.engine.complete("run_1")
            seen = await until_end(session)
        assert phases(seen) == [
            "waiting_for_slot",
            "dispatched_to_gateway",
            "starting_engine",
            "streaming",
            "finalizing",
            "completed",
        ]
        watched = r.router.journal.replay("run_1")
        assert watched is not None
        assert [item.meta["event_seq"] for item in watched if isinstance(item, Event)] == list(
            range(1, len(seen) + 1)
        )
        engine_seqs = [
            item.meta["engine_event_seq"]
            for item in watched
            if isinstance(item, Event) and "engine_event_seq" in item.meta
        ]
        assert engine_seqs == [1, 2, 3, 4]
        await r.router.drained()
        assert await r.router.admission("run_1") == "completed"
        assert (await r.router.counts())["completed_today"] == 1


@pytest.mark.behaviour("lemon_router.2")
async def test_one_run_id_runs_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        results: list[SubmitResult] = []

        async def submit() -> None:
            results.append(await r.submit("run_1"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit)
            tasks.start_soon(submit)
        assert sorted(result.duplicate for result in results) == [False, True]
        await r.engine.wait_submitted("run_1")
        r.engine.complete("run_1")
        await r.router.drained()
        assert await r.submit("run_1") == SubmitResult("accepted", "run_1", duplicate=True)
        conflict = await r.submit("run_1", prompt="something else")
        assert (conflict.status, conflict.reason) == ("rejected", "run_id_conflict")
        assert list(r.engine.runs) == ["run_1"]


@pytest.mark.behaviour("lemon_router.1")
async def test_an_unknown_agent_leaves_no_record(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        refused = await r.submit("run_1", agent_id="nobody")
        assert (refused.status, refused.reason) == ("rejected", "unknown_agent_id")
        assert await r.router.admission("run_1") is None
        generated = await r.router.submit({"prompt": "hi"})
        assert generated.status == "accepted"
        assert generated.run_id is not None
        assert generated.run_id.startswith("run_")
        model = RunRequest(prompt="hi", run_id="run_2", session_key="agent:default:main:sub:y")
        assert (await r.router.submit(model)).run_id == "run_2"
        assert await r.router.admission("run_2") == "started"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": "  "}, "empty_prompt"),
        ({"session_key": "agent:x"}, "invalid_session_key"),
        ({"cwd": "/does/not/exist"}, "invalid_cwd"),
        ({"cwd": "a\0b"}, "invalid_cwd"),
        ({"queue_mode": "fifo"}, "invalid_request"),
        ({"tool_policy": {"alow": []}}, "invalid_tool_policy"),
        ({"meta": {"limits": {"max_tokens": 0}}}, "invalid_limits"),
        ({"resume": ResumeToken(engine="codex", value="x")}, "unsupported_resume_engine"),
    ],
)
async def test_a_refused_request_leaves_nothing_behind(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    async with rig(tmp_path) as r:
        refused = await r.submit("run_1", **fields)
        assert (refused.status, refused.reason) == ("rejected", reason)
        assert refused.detail is not None
        assert await r.router.records() == []


async def test_a_damaged_stored_policy_refuses_the_run(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.store.put("session_policies", SESSION, {"alow": ["bash"]})
        refused = await r.submit("run_1")
        assert (refused.status, refused.reason) == ("rejected", "policy_unreadable")


async def test_layers_meet_in_the_context(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await PolicyStore(r.store).put("runtime", {"deny": ["bash"]})
        await r.submit("run_1", tool_policy={"allow": ["bash", "read"]})
        run = await r.engine.wait_submitted("run_1")
        policy = run.command.tool_policy
        assert policy is not None
        assert (policy.allowed("read"), policy.allowed("bash"), policy.allowed("write")) == (
            True,
            False,
            False,
        )


@pytest.mark.behaviour("lemon_router.20")
async def test_a_message_queued_during_the_first_run_resumes_the_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        meta = {"auto_resume": True}
        await r.submit("run_1", meta=meta)
        await r.engine.wait_submitted("run_1")
        await r.submit("run_2", meta=meta)
        await r.submit("run_3", meta={**meta, "disable_auto_resume": True})
        assert list(r.engine.runs) == ["run_1"]
        assert await r.router.counts() == {"active": 1, "queued": 2, "completed_today": 0}
        state = ChatState(last_engine="lemon", last_resume_token=TOKEN.value)
        await r.chat_states.put(SESSION, state)
        r.engine.complete("run_1", resume=TOKEN)
        second = await r.engine.wait_submitted("run_2")
        assert second.command.resume == TOKEN
        assert second.command.conversation_key == ("session", SESSION)
        assert "run_3" not in r.engine.runs
        r.engine.complete("run_2")
        third = await r.engine.wait_submitted("run_3")
        assert third.command.resume is None


async def test_later_messages_of_a_session_resume_it_by_its_token(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        state = ChatState(last_engine="lemon", last_resume_token=TOKEN.value)
        await r.chat_states.put(SESSION, state)
        await r.submit("run_1", meta={"auto_resume": True})
        run = await r.engine.wait_submitted("run_1")
        assert run.command.conversation_key == ("resume", "lemon", TOKEN.value)
        assert run.command.meta["resume_source"] == "auto"
        await r.submit("run_2", session_key="agent:default:main:sub:x")
        assert (await r.engine.wait_submitted("run_2")).command.resume is None


@pytest.mark.behaviour("lemon_router.6")
async def test_which_token_a_run_resumes(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        native = ChatState(last_engine="lemon", last_resume_token=TOKEN.value)
        foreign = ChatState(last_engine="codex", last_resume_token="theirs")
        explicit = ResumeToken(engine="lemon", value="sess_2")

        async def resumed(
            run_id: str, state: ChatState, **fields: object
        ) -> tuple[ResumeToken | None, object]:
            key = f"agent:default:main:sub:{run_id}"
            await r.chat_states.put(key, state)
            assert (await r.submit(run_id, session_key=key, **fields)).status == "accepted"
            command = (await r.engine.wait_submitted(run_id)).command
            return command.resume, command.meta.get("resume_source")

        on: dict[str, object] = {"auto_resume": True}
        assert await resumed("r1", native, meta=on) == (TOKEN, "auto")
        assert await resumed("r2", native, meta=on, resume=explicit) == (explicit, "explicit")
        assert await resumed("r3", native) == (None, None)
        off = {**on, "disable_auto_resume": True}
        assert await resumed("r4", native, meta=off) == (None, None)
        assert await resumed("r5", foreign, meta=on) == (None, None)
        kept = await r.chat_states.get("agent:default:main:sub:r5")
        assert kept is not None
        assert kept.last_resume_token == "theirs"
        refused = await r.submit("r6", resume=ResumeToken(engine="codex", value="theirs"))
        assert refused.reason == "unsupported_resume_engine"


@pytest.mark.behaviour("lemon_router.24")
async def test_a_refused_submission_is_sent_again_until_it_is_taken(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.refuse_next = [ExecutionRejected("draining"), OSError("no route")]
        await r.submit("run_1")
        for _ in range(2):
            await r.clock.wait_for_sleepers(1)
            await r.clock.advance(200)
        await r.engine.wait_submitted("run_1")
        r.engine.is_available = False
        await r.submit("run_2", session_key="agent:default:main:sub:y")
        for attempt in range(4):
            await r.clock.wait_for_sleepers(1)
            assert "run_2" not in r.engine.runs
            r.engine.is_available = attempt == 2
            await r.clock.advance(2_000)
            if "run_2" in r.engine.runs:
                break
        # The scripted gateway refuses a second submission of one run.
        await r.engine.wait_submitted("run_2")


@pytest.mark.behaviour("lemon_router.25")
async def test_an_abort_that_no_gateway_answers_ends_the_run_itself(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        with r.bus.subscribe(run_topic("run_1")) as events:
            del r.engine.runs["run_1"]
            await r.router.abort_run("run_1")
            await r.clock.wait_for_sleepers(1)
            await r.clock.advance(149)
            assert await r.router.session_busy(SESSION)
            await r.clock.advance(1)
            ended = (await until_end(events))[-1]
        assert isinstance(ended.payload, RunCompleted)
        assert ended.payload.completed.error == "user_requested"
        await r.router.drained()
        assert await r.router.admission("run_1") == "aborted"


@pytest.mark.behaviour("lemon_router.25")
async def test_a_real_completion_that_comes_in_time_beats_the_synthetic_one(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        with r.bus.subscribe(session_topic(SESSION)) as events:
            await r.router.abort_run("run_1")
            await r.clock.wait_for_sleepers(1)
            r.engine.complete("run_1", answer="made it")
            r.engine.publish("run_1", "run_completed", RunCompleted(completed=Completion(ok=False)))
            await r.router.drained()
            await r.clock.advance(10_000)
            seen = await events.receive_batch()
        ends = [e.payload for e in seen if isinstance(e.payload, RunCompleted)]
        assert [end.completed.answer for end in ends] == ["made it"]
        assert await r.router.admission("run_1") == "completed"


@pytest.mark.behaviour("lemon_router.24")
async def test_an_abort_while_waiting_for_the_gateway_submits_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.is_available = False
        with r.bus.subscribe(run_topic("run_1")) as events:
            await r.submit("run_1")
            await r.clock.wait_for_sleepers(1)
            await r.router.abort_run("run_1")
            ended = (await until_end(events))[-1].payload
        assert isinstance(ended, RunCompleted)
        assert ended.completed.error == "user_requested"
        assert ended.completed.meta == {"synthetic": True}
        await r.router.drained()
        assert r.engine.runs == {}
        assert await r.router.admission("run_1") == "aborted"


async def test_a_permanent_refusal_ends_the_run_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.refuse_next = [InvalidCommand("no conversation key")]
        with r.bus.subscribe(run_topic("run_1")) as events:
            await r.submit("run_1")
            ended = (await until_end(events))[-1].payload
        assert isinstance(ended, RunCompleted)
        assert ended.completed.error == {
            "code": "invalid_command",
            "message": "no conversation key",
        }
        await r.router.drained()
        assert await r.router.admission("run_1") == "failed"


async def test_aborting_an_active_run_cancels_it_and_waits_for_its_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        with r.bus.subscribe(session_topic(SESSION)) as events:
            await r.router.abort_session(SESSION)
            await r.clock.wait_for_sleepers(1)
            assert r.engine.cancelled == [("run_1", "user_requested")]
            r.engine.complete("run_1", ok=False, error="user_requested")
            seen = await until_end(events)
        assert phases(seen)[-1] in {"aborted", "failed"}
        await r.router.drained()
        assert await r.router.admission("run_1") == "aborted"


async def test_a_dropped_run_gets_a_synthetic_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        await r.submit("run_2")
        with r.bus.subscribe(run_topic("run_2")) as events:
            await r.router.abort_run("run_2")
            seen = await until_end(events)
        assert [event.type for event in seen] == ["run_phase_changed", "run_completed"]
        assert "run_2" not in r.engine.runs
        assert r.engine.cancelled == []
        assert not r.router.journal.is_live("run_2")


async def test_a_lost_run_ends_and_the_next_one_starts(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        await r.submit("run_2")
        with r.bus.subscribe(run_topic("run_1")) as events:
            r.engine.lose("run_1")
            await r.clock.wait_for_sleepers(1)
            await r.clock.advance(200)
            ended = (await until_end(events))[-1].payload
        assert isinstance(ended, RunCompleted)
        assert ended.completed.error == {"code": "gateway_run_down", "detail": "stream_lost"}
        await r.engine.wait_submitted("run_2")


async def test_a_gateway_on_the_same_bus_is_asked_and_not_followed(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.engine.on_this_bus = True
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        await r.submit("run_2", session_key="agent:default:main:sub:x")
        await r.engine.wait_submitted("run_2")
        await r.clock.wait_for_sleepers(2)
        del r.engine.runs["run_1"]
        with r.bus.subscribe(run_topic("run_1")) as events:
            await r.clock.advance(15_000)
            await r.clock.wait_for_sleepers(2)
            await r.clock.advance(200)
            ended = (await until_end(events))[-1].payload
        assert isinstance(ended, RunCompleted)
        assert ended.completed.error == {"code": "gateway_run_down", "detail": "not_found"}
        assert await r.router.session_busy("agent:default:main:sub:x")
        r.engine.complete("run_2")
        await r.router.drained()


async def test_an_end_that_only_asking_reveals_is_the_real_one(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        real = Completion(ok=True, answer="real")
        with r.bus.subscribe(run_topic("run_1")) as events:
            r.engine.end("run_1", real, publish=False)
            await r.clock.wait_for_sleepers(1)
            await r.clock.advance(200)
            ended = (await until_end(events))[-1].payload
        assert isinstance(ended, RunCompleted)
        assert ended.completed == real


async def test_capacity_refuses_before_anything_is_stored(tmp_path: Path) -> None:
    async with rig(tmp_path, limit=1) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        full = await r.submit("run_2", session_key="agent:default:main:sub:x")
        assert (full.status, full.reason) == ("rejected", "run_capacity_reached")
        assert await r.router.admission("run_2") is None


async def test_a_draining_router_is_unavailable_and_waits_for_its_runs(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        await r.router.refuse()
        assert (await r.submit("run_2")).status == "unavailable"
        assert (await r.submit("run_1")).duplicate
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(r.router.drained)
            r.engine.complete("run_1", ok=False, error="gateway_shutdown")
        assert await r.router.admission("run_1") == "failed"
