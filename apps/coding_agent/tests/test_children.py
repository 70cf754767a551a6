"""Runs that a run starts (specification coding_agent 7, 8, 11.11 and 11.20)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from coding_agent.delivered import HEADLINE
from coding_agent.followups import RETRY_DELAYS_MS, followup_run_id
from coding_agent.services import services
from coding_agent.tasks import TTL_MS, TaskRecord
from coding_agent.tests.scene import Scene, scene, stored, tool_turn
from lemon_ai.testing import FakeToolCall, FakeUsage, Turn
from lemon_core.bridges import ROUTER, SubmitResult
from lemon_core.bus import run_topic
from lemon_core.execution_context import Limits
from lemon_core.runs import RunRequest
from lemon_core.testing import FakeClock
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.requests import EngineCompleted

pytestmark = pytest.mark.anyio


class FakeRouter:
    """Takes submissions after so many refusals."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.requests: list[RunRequest] = []
        self.came = anyio.Event()

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        self.requests.append(request)
        self.came.set()
        if self.refusals:
            self.refusals -= 1
            return SubmitResult("unavailable", request.run_id, "busy")
        return SubmitResult("accepted", request.run_id)

    async def admission(self, run_id: str) -> str | None:
        return None

    async def abort_run(self, run_id: str, reason: str = "") -> None:
        self.requests.clear()


def child_turn(**arguments: Any) -> Turn:
    """The parent's answer to `go`: it gives work to a task."""
    call = FakeToolCall("task", {"action": "run", "prompt": "child work", **arguments})
    return Turn(tool_calls=[call], when="go")


def clock_of(here: Scene) -> FakeClock:
    clock: FakeClock = here.runtime.clock
    return clock


async def records(here: Scene) -> list[TaskRecord]:
    return await here.runtime.service(services).children.all()


async def until_ended(here: Scene, status: str = "completed") -> TaskRecord:
    """The one task, once nothing of it is left."""
    children = here.runtime.service(services).children
    with anyio.fail_after(5):
        (record,) = await records(here)
        while (child := children.living(record.id)) is not None:
            await child.ended.wait()
    (record,) = await records(here)
    assert record.status == status
    return record


def requests_with(here: Scene, text: str) -> list[int]:
    """The requests whose last message holds this text."""
    found = range(len(here.server.requests))
    return [n for n in found if text in here.shown(n)[-1][1]]


def tool_names(here: Scene, request: int) -> list[str]:
    return [t["function"]["name"] for t in here.server.requests[request].body.get("tools", ())]


@pytest.mark.behaviour("coding_agent.20")
async def test_a_living_parent_reads_the_result_once(tmp_path: Path) -> None:
    """Receipt at once, then the answer as a message that says where it comes from."""
    turns = (
        child_turn(description="look"),
        Turn(text="child answer", when="child work", thinking="secret"),
        Turn(text="meanwhile", when="Task queued: task_", gate="parent"),
        Turn(text="I have it", when=HEADLINE),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks, "go")
        with anyio.fail_after(5):
            await here.server.gate("parent").reached.wait()
        record = await until_ended(here)
        here.server.gate("parent").open()
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert live.completed.answer == "I have it"
        (read,) = requests_with(here, HEADLINE)
        message = here.shown(read)[-1][1]
        assert f"task_id: {record.id}" in message
        assert f"Task {record.id} (look): completed\n\nchild answer" in message
        assert "secret" not in message
        (record,) = await records(here)
        assert record.delivered_at_ms is not None
        # The conversation keeps it as what it was.
        parent_file = next(p for p in here.session_files if "customMessage" in p.read_text())
        lines = [json.loads(line) for line in parent_file.read_text().splitlines()]
        (kept,) = [line for line in lines if line["type"] == "customMessage"]
        assert kept["details"]["task_id"] == record.id
        child_header = json.loads(
            next(p for p in here.session_files if p != parent_file).read_text().splitlines()[0]
        )
        assert child_header["parentSession"] == parent_file.stem


@pytest.mark.behaviour("coding_agent.20")
async def test_after_its_end_the_parents_session_gets_it_through_the_router(tmp_path: Path) -> None:
    """A refusal is tried again under the same run id, so nothing runs twice."""
    turns = (
        child_turn(),
        Turn(text="child answer", when="child work", gate="child"),
        Turn(text="bye", when="Task queued"),
    )
    async with scene(tmp_path, *turns) as here:
        router = FakeRouter(refusals=3)
        here.runtime.capabilities.register(ROUTER, router)
        live = await here.run("go")
        assert live.completed.answer == "bye"
        here.server.gate("child").open()
        record = await until_ended(here)
        with anyio.fail_after(5):
            for delay in RETRY_DELAYS_MS[1:]:
                await clock_of(here).wait_for_sleepers()
                await clock_of(here).advance(delay)
            while (await records(here))[0].delivered_at_ms is None:
                await anyio.lowlevel.checkpoint()
        assert {request.run_id for request in router.requests} == {followup_run_id(record.id)}
        assert len(router.requests) == 4
        request = router.requests[-1]
        assert request.session_key == record.parent_session_key
        assert request.queue_mode == "followup"
        assert request.execution_context is not None
        assert request.execution_context.run_id == live.handle.run_ref
        assert request.meta["task_auto_followup"] is True
        assert "child answer" in request.prompt
        followups = request.meta["async_followups"]
        assert isinstance(followups, list)
        assert [details["task_id"] for details in followups] == [record.id]


@pytest.mark.behaviour("coding_agent.121")
async def test_two_that_end_during_a_model_call_are_both_read(tmp_path: Path) -> None:
    """And so is what the user says meanwhile."""
    calls = [
        FakeToolCall("task", {"action": "run", "prompt": f"child work {n}", "description": f"n{n}"})
        for n in (1, 2)
    ]
    turns = (
        Turn(tool_calls=calls, when="go"),
        Turn(text="one", when="child work 1"),
        Turn(text="two", when="child work 2"),
        Turn(text="hm", when="Task queued", gate="parent"),
        Turn(text="a", when=HEADLINE),
        Turn(text="b", when=HEADLINE),
        Turn(text="c", when="and then?"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks, "go")
        children = here.runtime.service(services).children
        with anyio.fail_after(5):
            await here.server.gate("parent").reached.wait()
            for record in await records(here):
                if (child := children.living(record.id)) is not None:
                    await child.ended.wait()
        await here.executor.steer(live.handle.control, "and then?")
        here.server.gate("parent").open()
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert live.completed.answer == "c"
        read = [here.shown(number)[-1][1] for number in requests_with(here, HEADLINE)]
        assert sorted(text.rpartition("```")[0].split()[-1] for text in read) == ["one", "two"]
        assert all(record.delivered_at_ms is not None for record in await records(here))


@pytest.mark.behaviour("coding_agent.121")
async def test_what_nobody_takes_is_read_by_the_sessions_next_run(tmp_path: Path) -> None:
    turns = (
        child_turn(),
        Turn(text="child answer", when="child work", gate="child"),
        Turn(text="bye", when="Task queued"),
        Turn(text="I have it", when=HEADLINE),
        Turn(text="nothing new", when="anything else?"),
    )
    async with scene(tmp_path, *turns) as here:
        first = await here.run("go")
        here.server.gate("child").open()
        await until_ended(here)
        with anyio.fail_after(5):
            await clock_of(here).wait_for_sleepers()
        second = await here.run("well?", resume=first.completed.resume)
        assert second.completed.answer == "I have it"
        texts = [text for _, text in here.shown()]
        assert "well?" in texts
        third = await here.run("anything else?", resume=first.completed.resume)
        assert third.completed.answer == "nothing new"
        assert len(requests_with(here, HEADLINE)) == 1


@pytest.mark.behaviour("coding_agent.20")
async def test_a_join_gets_the_answers_and_no_message_follows(tmp_path: Path) -> None:
    """Two children; the parent waits for both, in bounds."""
    calls = [
        FakeToolCall("task", {"action": "run", "prompt": f"child work {n}", "description": f"n{n}"})
        for n in (1, 2)
    ]
    async with scene(tmp_path) as here, anyio.create_task_group() as tasks:
        gate = here.server.gate
        here.server.enqueue(
            Turn(tool_calls=calls, when="go"),
            Turn(text="one", when="child work 1", gate="one"),
            Turn(text="two", when="child work 2", gate="two"),
            Turn(text="wait", when="Task queued", gate="first"),
        )
        live = await here.start(tasks, "go")
        with anyio.fail_after(5):
            await gate("first").reached.wait()
        by_name = {record.description: record.id for record in await records(here)}
        ids = [by_name["n1"], by_name["n2"]]
        join = FakeToolCall("task", {"action": "join", "task_ids": ids})
        here.server.enqueue(
            Turn(tool_calls=[join], when="join them", gate="second"),
            Turn(text="both", when="(n2): completed"),
        )
        await here.executor.steer(live.handle.control, "join them")
        gate("first").open()
        with anyio.fail_after(5):
            await gate("second").reached.wait()
            child = here.runtime.service(services).children.living(ids[1])
            assert child is not None
            gate("two").open()
            await child.ended.wait()
        gate("second").open()
        gate("one").open()
        await live.until(lambda m: isinstance(m, EngineCompleted))
        joined = here.shown()[-1][1]
        assert f"Task {ids[0]} (n1): completed\n\none\n\nTask {ids[1]} (n2): completed" in joined
        assert live.completed.answer == "both"
        # The one that had ended before was on its way as a message, which was taken back.
        assert not requests_with(here, HEADLINE)


@pytest.mark.behaviour("coding_agent.20")
async def test_a_task_may_be_waited_for_and_its_price_is_the_parents(tmp_path: Path) -> None:
    spent = FakeUsage(input=1_000, output=1)
    turns = (
        child_turn(**{"async": False}),
        Turn(text=["part ", "answer"], when="child work", usage=spent),
        Turn(text="fine", when="part answer"),
    )
    async with scene(tmp_path, *turns) as here:
        live = await here.run("go")
        assert live.completed.answer == "fine"
        assert here.shown()[-1] == ("tool", "part answer")
        usage = live.completed.usage
        assert usage is not None
        assert usage["input"] == 1_020
        assert usage["context_tokens"] == 10
        (record,) = await records(here)
        assert (record.status, record.wants_followup) == ("completed", False)


@pytest.mark.behaviour("coding_agent.120")
@pytest.mark.parametrize("max_tokens", [1_000, 2_000])
async def test_what_a_child_uses_counts_against_the_limits_of_its_parent(
    tmp_path: Path, max_tokens: int
) -> None:
    """The parent makes no further model call then; the child had what was left."""
    spent = FakeUsage(input=1_000, output=1)
    turns = (
        child_turn(**{"async": False}),
        Turn(text="child answer", when="child work", usage=spent),
        Turn(text="fine", when="child answer"),
    )
    async with scene(tmp_path, *turns) as here:
        live = await here.run("go", limits=Limits(max_tokens=max_tokens))
        if max_tokens == 2_000:
            assert live.completed.answer == "fine"
            return
        assert isinstance(live.completed.error, dict)
        assert live.completed.error["code"] == "max_tokens_exhausted"
        assert len(here.server.requests) == 2
        (record,) = await records(here)
        assert record.status == "completed"


@pytest.mark.behaviour("coding_agent.120")
async def test_a_parent_that_has_used_its_limit_up_starts_no_child(tmp_path: Path) -> None:
    """What it used itself counts, and not only what its children did."""
    spent = FakeUsage(input=1_000, output=1)
    call = FakeToolCall("task", {"action": "run", "prompt": "child work"})
    async with scene(tmp_path, Turn(tool_calls=[call], usage=spent)) as here:
        await here.run("go", limits=Limits(max_tokens=1_000))
        assert await records(here) == []
        assert "the limit of 1000 tokens is used up" in json.dumps(stored(here))


@pytest.mark.behaviour("coding_agent.20")
async def test_an_abort_of_the_parent_ends_its_children(tmp_path: Path) -> None:
    """Before the parent's completion is sent nothing of them is left, and nothing is delivered."""
    turns = (
        child_turn(),
        Turn(
            tool_calls=[FakeToolCall("bash", {"command": "echo $$ > pid; sleep 300"})],
            when="child work",
        ),
        Turn(text="wait", when="Task queued", gate="parent"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        router = FakeRouter()
        here.runtime.capabilities.register(ROUTER, router)
        live = await here.start(tasks, "go")
        with anyio.fail_after(5):
            await here.server.gate("parent").reached.wait()
        await here.executor.cancel(live.handle.control)
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert live.completed.error == "Cancelled by user"
        (record,) = await records(here)
        assert record.status == "aborted"
        children = here.runtime.service(services).children
        assert children.living(record.id) is None
        await children._recover()
        assert router.requests == []


@pytest.mark.behaviour("coding_agent.20")
async def test_a_child_that_hangs_is_ended_when_its_time_is_over(tmp_path: Path) -> None:
    turns = (
        child_turn(**{"async": False, "timeout_ms": 5_000}),
        Turn(text=["so ", "far"], when="child work", gate="child", gate_after=1),
        Turn(text="too bad", when="timeout"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks, "go")
        with anyio.fail_after(5):
            await here.server.gate("child").reached.wait()
            await clock_of(here).wait_for_sleepers(2)
            await clock_of(here).advance(5_000)
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert live.completed.answer == "too bad"
        (record,) = await records(here)
        assert record.status == "timeout"
        assert record.result == "so "


@pytest.mark.behaviour("coding_agent.11")
@pytest.mark.behaviour("coding_agent.120")
async def test_a_child_never_has_more_than_its_parent(tmp_path: Path) -> None:
    """Its rights are what both permit, and it starts no children unless it was allowed to."""
    turns = (
        child_turn(**{"async": False, "tool_policy": {"allow": ["read", "write", "bash"]}}),
        tool_turn("write", path="x.txt", content="x"),
        Turn(text="could not", when="write"),
        Turn(text="ok", when="could not"),
    )
    async with scene(tmp_path, *turns) as here:
        policy = ToolPolicy.parse({"deny": ["write", "edit"]})
        live = await here.run("go", policy=policy)
        assert live.completed.ok
        (child, *_) = requests_with(here, "child work")
        assert tool_names(here, child) == ["read", "bash"]
        assert "task" in tool_names(here, 0)
        assert not (here.cwd / "x.txt").exists()


async def test_by_default_a_child_gives_no_work_to_others(tmp_path: Path) -> None:
    turns = (child_turn(**{"async": False}), Turn(text="x", when="child work"), Turn(text="ok"))
    async with scene(tmp_path, *turns) as here:
        await here.run("go")
        (child,) = requests_with(here, "child work")
        assert not {"task", "agent"} & set(tool_names(here, child))
        assert "read" in tool_names(here, child)
        system = here.shown(child)[0][1]
        assert "You work for another agent." in system
        assert "## TOOLS.md" in system
        assert "## SOUL.md" not in system


@pytest.mark.parametrize(
    ("arguments", "limits", "problem"),
    [
        ({"cwd": "/"}, None, "lies outside the workspace"),
        ({"tool_policy": {"profile": "absurd"}}, None, "tool_policy: "),
        ({"role": "wizard"}, None, "there is no role 'wizard'; known: research, implement"),
        ({"prompt": " "}, None, "run needs a prompt"),
        ({}, Limits(max_depth=1, max_children=1, max_tokens=1_000_000), None),
    ],
)
async def test_what_is_refused_is_said(
    tmp_path: Path, arguments: dict[str, Any], limits: Limits | None, problem: str | None
) -> None:
    # A child that is quick is told of while the parent still works, and answered.
    spare = Turn(text="ok"), Turn(text="ok")
    turns = (child_turn(**arguments), Turn(text="x", when="child work"), *spare)
    async with scene(tmp_path, *turns) as here:
        here.runtime.capabilities.register(ROUTER, FakeRouter())
        live = await here.run("go", limits=limits)
        assert live.completed.ok
        answered = next(
            text
            for number in range(len(here.server.requests))
            for role, text in here.shown(number)
            if role == "tool"
        )
        assert problem is None or problem in answered
        assert len(await records(here)) == (1 if problem is None else 0)


@pytest.mark.behaviour("coding_agent.120")
async def test_a_run_starts_so_many_children_and_no_more(tmp_path: Path) -> None:
    calls = [FakeToolCall("task", {"action": "run", "prompt": f"child {n}"}) for n in range(3)]
    async with scene(tmp_path) as here:
        here.runtime.capabilities.register(ROUTER, FakeRouter())
        here.server.enqueue(
            Turn(tool_calls=calls, when="go"),
            Turn(text="a", when="child 0"),
            Turn(text="b", when="child 1"),
            Turn(text="ok", when="which is all it may start"),
            # A child that is quick is told of while the parent still works, and answered.
            *(Turn(text="ok") for _ in range(2)),
        )
        live = await here.run("go", limits=Limits(max_children=2))
        assert live.completed.ok
        assert len(await records(here)) == 2


async def test_whoever_watches_sees_the_child_and_its_steps(tmp_path: Path) -> None:
    """On the child's own topic and, marked, on its parent's."""
    turns = (
        child_turn(description="look", **{"async": False}),
        Turn(tool_calls=[FakeToolCall("ls", {})], when="child work"),
        Turn(text="done", when="Directory"),
        Turn(text="ok"),
    )
    async with scene(tmp_path, *turns) as here:
        live = await here.prepare(here.request("go"))
        bus = here.runtime.bus
        with bus.subscribe(run_topic(live.handle.run_ref)) as events, anyio.fail_after(10):
            await live.play()
            seen = await events.receive_batch()
        types = [event.type for event in seen]
        assert "task_started" in types
        assert types.index("task_started") < types.index("task_completed")
        assert "run_graph_changed" in types
        projected = [event for event in seen if event.type == "task_projected_child_action"]
        (record,) = await records(here)
        assert projected[0].payload["action"]["id"].startswith(f"taskproj:{record.run_id}:tool_")
        assert projected[0].payload["action"]["detail"]["task_id"] == record.id
        (ended,) = [event.payload for event in seen if event.type == "task_completed"]
        assert (ended["task_id"], ended["status"]) == (record.id, "completed")
        assert "child work" not in str([event.payload for event in seen if "task_" in event.type])


@pytest.mark.behaviour("coding_agent.121")
async def test_a_restart_ends_what_was_running_and_tells_the_parent(tmp_path: Path) -> None:
    """And what had ended untold is told."""
    async with scene(tmp_path, Turn(text="ok")) as here:
        children = here.runtime.service(services).children
        context = here.request().execution_context.to_wire()
        common: dict[str, Any] = {
            "kind": "task",
            "parent_run_id": "run_gone",
            "parent_session_key": "agent:default:main",
            "agent_id": "default",
            "session_key": "agent:default:main:sub:x",
            "description": "d",
            "prompt": "p",
            "wants_followup": True,
            "context": context,
            "created_at_ms": 1,
        }
        store = children._store
        await store.add(TaskRecord(id="t1", run_id="run_1", status="running", **common))
        now = clock_of(here).now_ms()
        ended: dict[str, Any] = {"status": "completed", "result": "r", "ended_at_ms": now}
        await store.add(TaskRecord(id="t2", run_id="run_2", **common, **ended))
        router = FakeRouter()
        here.runtime.capabilities.register(ROUTER, router)
        with anyio.fail_after(5):
            await children._recover()
        prompts = sorted(request.prompt for request in router.requests)
        assert prompts == ["Task t1 (d): lost: lost_on_restart", "Task t2 (d): completed\n\nr"]
        assert all(record.delivered_at_ms is not None for record in await children.all())
        await children._recover()
        assert len(router.requests) == 2


@pytest.mark.behaviour("coding_agent.121")
async def test_what_a_shutdown_ends_is_told_by_the_next_runtime(tmp_path: Path) -> None:
    turns = (
        child_turn(),
        Turn(text="never", when="child work", gate="child"),
        Turn(text="bye", when="Task queued"),
    )
    async with scene(tmp_path, *turns) as here:
        await here.run("go")
        with anyio.fail_after(5):
            await here.server.gate("child").reached.wait()
        children = here.runtime.service(services).children
    (record,) = await children.all()
    assert (record.status, record.delivered_at_ms) == ("aborted", None)
    router = FakeRouter()
    here.runtime.capabilities.register(ROUTER, router)
    with anyio.fail_after(5):
        await children._recover()
    assert [request.run_id for request in router.requests] == [followup_run_id(record.id)]


async def test_what_ended_a_day_ago_is_forgotten(tmp_path: Path) -> None:
    turns = (
        child_turn(**{"async": False}),
        Turn(text="a", when="child work"),
        Turn(text="ok", when="a"),
        child_turn(**{"async": False}),
        Turn(text="b", when="child work"),
        Turn(text="ok", when="b"),
    )
    async with scene(tmp_path, *turns) as here:
        await here.run("go")
        (old,) = await records(here)
        await clock_of(here).advance(TTL_MS + 1)
        await here.run("go")
        with anyio.fail_after(5):
            while old.id in [record.id for record in await records(here)]:
                await anyio.lowlevel.checkpoint()
        assert len(await records(here)) == 1


async def test_tasks_of_another_session_are_unknown(tmp_path: Path) -> None:
    turns = (
        child_turn(**{"async": False}),
        Turn(text="secret", when="child work"),
        Turn(text="ok"),
    )
    async with scene(tmp_path, *turns) as here:
        await here.run("go")
        (record,) = await records(here)
        for action in ("poll", "get"):
            here.server.enqueue(
                tool_turn("task", action=action, task_id=record.id), Turn(text="ok")
            )
            await here.run("look", session_key="agent:default:main:sub:other")
            assert here.shown()[-1][1] == f"there is no task '{record.id}' in this conversation"
            here.server.enqueue(
                tool_turn("task", action=action, task_id=record.id), Turn(text="ok")
            )
            await here.run("look")
            assert "secret" in here.shown()[-1][1]


@pytest.mark.behaviour("coding_agent.20")
async def test_a_poll_says_how_it_stands(tmp_path: Path) -> None:
    turns: Sequence[Turn] = (
        child_turn(),
        Turn(text="late", when="child work", gate="child"),
        Turn(text="bye", when="Task queued"),
    )
    async with scene(tmp_path, *turns) as here:
        here.runtime.capabilities.register(ROUTER, FakeRouter())
        await here.run("go")
        (record,) = await records(here)
        here.server.enqueue(tool_turn("task", action="poll", task_id=record.id), Turn(text="ok"))
        await here.run("look")
        assert here.shown()[-1][1] == "Task status: running"
        here.server.gate("child").open()
        await until_ended(here)
        here.server.enqueue(tool_turn("task", action="poll", task_id=record.id), Turn(text="ok"))
        await here.run("look")
        assert here.shown()[-1][1] == "Status: completed\nlate"
