"""RouterService for outside clients (specification lemon_router 8)."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from lemon_core.approvals import ApprovalRequest, Denied
from lemon_core.bridges import RunNotFound, SubmitResult
from lemon_core.errors import LemonError
from lemon_core.events import ApprovalRequested, ApprovalResolved, Event
from lemon_core.rpc.router_client import RouterClient
from lemon_core.rpc.status import PermissionDenied
from lemon_core.runs import InvalidCommand, RunRequest
from lemon_router.tests.forms import TCP, Served, served

pytestmark = pytest.mark.anyio

SESSION = "agent:default:main:sub:x"


def request(run_id: str, **fields: object) -> RunRequest:
    return RunRequest.normalize(
        {"run_id": run_id, "prompt": "hi", "session_key": SESSION, **fields}
    )


async def watch(client: RouterClient, run_id: str, after_seq: int = 0) -> list[Event]:
    with anyio.fail_after(5):
        async with aclosing(client.watch(run_id, after_seq)) as events:
            return [event async for event in events]


async def test_a_client_submits_and_watches_over_the_socket() -> None:
    async with served() as s, s.client() as client:
        assert s.address == f"unix:{s.paths.router_socket}"
        assert s.paths.router_socket.stat().st_mode & 0o777 == 0o600
        taken = await client.submit_run(request("run_1"))
        assert taken == SubmitResult("accepted", "run_1", detail={"disposition": "started"})
        assert (await client.submit_run(request("run_1"))).duplicate
        await s.play("run_1")
        seen = await watch(client, "run_1")
        assert [event.meta["event_seq"] for event in seen] == list(range(1, len(seen) + 1))
        assert [event.type for event in seen if event.type != "run_phase_changed"] == [
            "run_started",
            "delta",
            "delta",
            "engine_completed",
            "run_completed",
        ]
        assert seen[-1].type == "run_completed"
        for after in range(len(seen)):
            rest = await watch(client, "run_1", after)
            assert [e.to_map() for e in rest] == [e.to_map() for e in seen[after:]]


async def test_what_the_router_knows_is_there_for_clients() -> None:
    async with served() as s, s.client() as client:
        await client.submit_run(request("run_1"))
        await s.engine.wait_submitted("run_1")
        await client.submit_run(request("run_2"))
        assert await client.active_run(SESSION) == "run_1"
        assert await client.list_active_sessions() == [{"session_key": SESSION, "run_id": "run_1"}]
        assert await client.counts() == {"active": 1, "queued": 1, "completed_today": 0}
        (session,) = await client.list_sessions()
        assert (session.active_run_id, session.queued_count) == ("run_1", 1)
        await s.play("run_1")
        await watch(client, "run_1")
        await s.play("run_2")
        await watch(client, "run_2")
        with anyio.fail_after(5):
            await s.router.drained()
        assert await client.admission("run_1") == "completed"
        assert [run.run_id for run in await client.list_runs()] == ["run_2", "run_1"]
        view = await client.get_session(SESSION)
        assert view is not None
        assert [run.state for run in view.runs] == ["completed", "completed"]
        info = await client.get_run("run_1")
        assert info is not None
        assert info.completion is not None
        assert info.completion.ok
        assert await client.get_run("run_9") is None
        assert await client.admission("run_9") is None
        assert await client.get_session("agent:default:main:sub:y") is None


async def test_aborting_over_the_wire_reaches_the_gateway() -> None:
    async with served() as s, s.client() as client:
        await client.submit_run(request("run_1"))
        await s.engine.wait_submitted("run_1")
        await client.abort_run("run_1", "user_requested")
        with anyio.fail_after(5):
            while not s.engine.cancelled:
                await anyio.lowlevel.checkpoint()
        s.engine.complete("run_1", ok=False, error="user_requested")
        assert (await watch(client, "run_1"))[-1].type == "run_completed"


async def test_an_unknown_run_cannot_be_watched() -> None:
    async with served() as s, s.client() as client:
        with pytest.raises(RunNotFound):
            await watch(client, "run_9")


@pytest.mark.behaviour("lemon_router.43")
async def test_every_call_over_tcp_shows_a_token_and_runs_under_its_policy() -> None:
    async with served(TCP) as s:
        for token in (None, "wrong"):
            async with s.client(token) as stranger:
                with pytest.raises(LemonError) as caught:
                    await stranger.counts()
                assert caught.value.code == "unauthenticated"
        async with s.client("secret-of-alice") as alice, s.client("secret-of-bob") as bob:
            await alice.submit_run(request("run_a"))
            context = (await s.engine.wait_submitted("run_a")).command.execution_context
            assert context is not None
            assert (context.principal.kind, context.principal.id) == ("node", "alice")
            assert context.capabilities.allowed("read")
            assert not context.capabilities.allowed("write")
            other = await bob.submit_run(request("run_b", origin="unknown"))
            assert (other.status, other.reason) == ("rejected", "origin_not_allowed")
            outside = await bob.submit_run(request("run_c", origin="node", cwd="/"))
            assert (outside.status, outside.reason) == ("rejected", "workspace_escape")
            await bob.submit_run(request("run_b", origin="node", session_key="agent:default:main"))
            await s.engine.wait_submitted("run_b")
            for foreign in (bob.get_run("run_a"), bob.abort_run("run_a"), bob.admission("run_a")):
                with pytest.raises(LemonError) as caught:
                    await foreign
                assert caught.value.code == "permission_denied"
            with pytest.raises(LemonError):
                await watch(bob, "run_a")
            assert [run.run_id for run in await bob.list_runs()] == ["run_b"]
            assert await bob.active_run(SESSION) is None
            await bob.abort_session(SESSION)
            assert s.engine.cancelled == []
            async with s.client("root!") as root:
                assert len(await root.list_runs()) == 2
                assert await root.active_run(SESSION) == "run_a"
            s.engine.complete("run_a")
            s.engine.complete("run_b")
            assert (await watch(alice, "run_a"))[-1].type == "run_completed"


async def test_a_watcher_sees_the_end_of_a_run_when_the_server_stops() -> None:
    seen: list[Event] = []

    async def follow(client: RouterClient, watching: anyio.Event) -> None:
        async with aclosing(client.watch("run_1")) as events:
            async for event in events:
                seen.append(event)
                watching.set()

    async with anyio.create_task_group() as tasks:
        async with served() as s:
            s.engine.on_this_bus = True  # runs on other nodes go on without this one
            client = await _open(s, tasks)
            await client.submit_run(request("run_1"))
            await s.engine.wait_submitted("run_1")
            watching = anyio.Event()
            tasks.start_soon(follow, client, watching)
            await watching.wait()

            async def end() -> None:
                s.engine.complete("run_1", ok=False, error="gateway_shutdown")

            s.runtime.on_drain("end", end)
        tasks.cancel_scope.cancel()
    assert seen[-1].type == "run_completed"


async def _open(s: Served, tasks: anyio.abc.TaskGroup) -> RouterClient:
    """A client that outlives the server."""

    async def keep(task_status: anyio.abc.TaskStatus[RouterClient]) -> None:
        async with s.client() as client:
            task_status.started(client)
            await anyio.sleep_forever()

    client: RouterClient = await tasks.start(keep)
    return client


@pytest.mark.behaviour("lemon_router.43", "lemon_router.44")
async def test_one_token_neither_changes_sessions_nor_answers_questions_of_another() -> None:
    async with (
        served(TCP) as s,
        s.client("secret-of-alice") as alice,
        s.client("secret-of-bob") as bob,
        s.client("root!") as root,
    ):
        s.engine.on_this_bus = True
        await alice.submit_run(request("run_a", origin="node"))
        await s.engine.wait_submitted("run_a")
        ask = ApprovalRequest(tool="bash", action={"command": "ls"}, run_id="run_a")
        answers: list[object] = []

        async def asking() -> None:
            answers.append(await s.runtime.approvals.request(ask))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asking)
                while not (found := await alice.list_approvals()):
                    await anyio.lowlevel.checkpoint()
                assert await bob.list_approvals() == []
                assert await root.list_approvals() == found
                for refused in (
                    bob.resolve_approval(found[0].id, "approve_once"),
                    alice.resolve_approval(found[0].id, "approve_global"),
                    bob.reset_session(SESSION),
                    bob.patch_session(SESSION, model="m"),
                    bob.patch_session("agent:default:main:sub:none", model="m"),
                ):
                    with pytest.raises(PermissionDenied):
                        await refused
                assert await alice.resolve_approval(found[0].id, "deny")
        assert answers == [Denied()]
        assert await bob.get_session(SESSION) is None
        assert (await alice.patch_session(SESSION, model="m")).model == "m"
        assert (await root.patch_session(SESSION, thinking_level="low")).thinking_level == "low"


async def test_a_bad_session_or_level_names_its_field() -> None:
    async with served() as s, s.client() as client:
        with pytest.raises(InvalidCommand, match="session_key"):
            await client.reset_session("no key")
        with pytest.raises(InvalidCommand, match="thinking_level: use one of off, minimal"):
            await client.patch_session(SESSION, thinking_level="hard")
        with pytest.raises(InvalidCommand, match="decision"):
            await client.resolve_approval("a", "")


async def test_a_watcher_sees_what_the_run_asks_and_the_answer() -> None:
    """Specification lemon_router 8: `approval_requested` and `approval_resolved` on the stream."""
    async with served() as s, s.client() as client:
        s.engine.on_this_bus = True
        await client.submit_run(request("run_1"))
        await s.engine.wait_submitted("run_1")
        s.engine.start("run_1")
        seen: list[str] = []

        async def ask(run_id: str) -> None:
            await s.runtime.approvals.request(
                ApprovalRequest(tool="bash", action={"command": "ls"}, run_id=run_id)
            )

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "run_other")
                tasks.start_soon(ask, "run_1")
                async with aclosing(client.watch("run_1")) as events:
                    async for event in events:
                        if isinstance(event.payload, ApprovalRequested):
                            assert event.payload.pending.run_id == "run_1"
                            for question in await client.list_approvals():
                                await client.resolve_approval(question.id, "deny")
                        if isinstance(event.payload, ApprovalResolved):
                            s.engine.complete("run_1")
                        seen.append(event.type)
        asked = [name for name in seen if name.startswith("approval")]
        assert asked == ["approval_requested", "approval_resolved"]
        assert seen[-1] == "run_completed"
