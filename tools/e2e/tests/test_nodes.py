"""Two gateway nodes behind one router, on one PostgreSQL store; one of them is killed."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

import anyio
import pytest

from lemon_core.clock import SystemClock
from lemon_core.errors import error_text
from lemon_core.events import ApprovalRequested, Completion, RunCompleted
from lemon_core.rpc.router_client import RouterClient
from lemon_core.runs import RunRequest
from lemon_core.testing.postgres import PostgresServer, postgres_server
from tools.e2e.tests.stack import Home, Program, model_server, scripted, user

pytestmark = pytest.mark.anyio

FAR = """
[store]
backend = "postgres"
[gateway]
max_concurrent_runs = 16
# Nodes work in the same place: a directory that both have mounted.
default_cwd = "{cwd}"
[gateway.rpc]
node_id = "far"
listen = "127.0.0.1:{port}"
[[gateway.rpc.tokens]]
id = "router"
secret = "NODE_TOKEN"
scopes = ["runs", "admin"]
origins = ["unknown"]
policy = "full_access"
"""
NEAR = """
[store]
backend = "postgres"
[gateway]
max_concurrent_runs = 16
# Nodes work in the same place: a directory that both have mounted.
default_cwd = "{cwd}"
[gateway.rpc]
node_id = "near"
[router]
engine_targets = ["unix:~/.lemon/run/gateway.sock", "127.0.0.1:{port}"]
engine_token_secret = "NODE_TOKEN"
[profiles.default.tool_policy]
approvals = {{ write = "always" }}
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def configured(home: Home, text: str) -> None:
    config = anyio.Path(home.paths.state_dir / "config.toml")
    await config.parent.mkdir(mode=0o700, exist_ok=True)
    await config.write_text(text)


@asynccontextmanager
async def two_nodes(url: str, script: dict[str, object]) -> AsyncIterator[tuple[Home, Program]]:
    """The user of the node with the router, and the server of the far one."""
    environ = {"LEMON_STORE_URL": url, "NODE_TOKEN": "between-nodes"}
    port = free_port()
    async with user(**environ) as near, user(**environ) as far:
        await configured(near, NEAR.format(port=port, cwd=near.work))
        await configured(far, FAR.format(port=port, cwd=near.work))
        async with model_server(script, near.paths.home) as base_url:
            me = scripted(near, base_url)
            async with (
                scripted(far, base_url).server() as far_server,
                me.server(),
            ):
                yield me, far_server


def request(session: str, prompt: str) -> RunRequest:
    key = f"agent:default:main:sub:{session}"
    return RunRequest(run_id=f"run_{session}_{len(prompt)}", session_key=key, prompt=prompt)


async def streaming_on(client: RouterClient, run_id: str) -> str:
    """The node of a run, once its answer has begun."""
    async with aclosing(client.watch(run_id)) as events:
        async for event in events:
            assert event.type != "run_completed", event.payload
            if event.type == "delta":
                break
    run = await client.get_run(run_id)
    assert run is not None
    assert run.node_id is not None
    return run.node_id


async def end_of(client: RouterClient, run_id: str) -> Completion:
    async with aclosing(client.watch(run_id)) as events:
        async for event in events:
            if isinstance(event.payload, RunCompleted):
                return event.payload.completed
    raise AssertionError(f"{run_id} has no end")


@pytest.mark.behaviour("lemon_router.45")
async def test_a_killed_node_loses_its_run_and_new_work_moves(postgres: PostgresServer) -> None:
    held = {"text": ["begun\n", "never"], "gate": "held", "gate_after": 1, "when": "hold"}
    script: dict[str, object] = {"turns": [held] * 16 + [{"text": "Moved.", "when": "after"}]}
    async with two_nodes(postgres.fresh_url(), script) as (me, far):
        target = f"unix:{me.paths.router_socket}"
        async with RouterClient(target, clock=SystemClock()) as client:
            with anyio.fail_after(60):
                places: dict[str, str] = {}
                while set(places.values()) != {"near", "far"}:
                    session = f"s{len(places)}"
                    assert (await client.submit_run(request(session, "hold"))).status == "accepted"
                    places[session] = await streaming_on(client, f"run_{session}_4")
                lost = next(name for name, node in places.items() if node == "far")
                kept = next(name for name, node in places.items() if node == "near")
                queued = await client.submit_run(request(lost, "after the loss"))
                assert queued.detail is not None
                assert queued.detail["disposition"] == "queued"
                far.signal(signal.SIGKILL)
                ended = await end_of(client, f"run_{lost}_4")
                assert (ended.ok, error_text(ended.error)) == (False, "run_lost")
                moved = await end_of(client, f"run_{lost}_14")
                assert (moved.ok, moved.answer) == (True, "Moved.")
                run = await client.get_run(f"run_{lost}_14")
                assert run is not None
                assert run.node_id == "near"
                assert await client.active_run(f"agent:default:main:sub:{kept}") is not None


async def question_of(client: RouterClient, run_id: str) -> str:
    """The id of what the run asks, once it asks."""
    async with aclosing(client.watch(run_id)) as events:
        async for event in events:
            if isinstance(event.payload, ApprovalRequested):
                return event.payload.approval_id
    raise AssertionError(f"{run_id} asks nothing")


@pytest.mark.behaviour("lemon_router.44")
async def test_a_question_of_the_far_node_is_answered_from_the_near_one(
    postgres: PostgresServer,
) -> None:
    arguments = {"path": "hello.txt", "content": "hi"}
    write = {"tool_calls": [{"name": "write", "arguments": arguments}], "when": "please write"}
    script: dict[str, object] = {"turns": [write] * 16 + [{"text": "Done."}] * 16}
    async with two_nodes(postgres.fresh_url(), script) as (me, _):
        target = f"unix:{me.paths.router_socket}"
        async with RouterClient(target, clock=SystemClock()) as client:
            with anyio.fail_after(60):
                node, count = "near", 0
                while node != "far":
                    asking = request(f"s{count}", "please write it")
                    asking = asking.model_copy(update={"meta": {"approvals": "ask"}})
                    assert (await client.submit_run(asking)).status == "accepted"
                    run_id = f"run_s{count}_15"
                    approval_id = await question_of(client, run_id)
                    run = await client.get_run(run_id)
                    assert run is not None
                    assert run.node_id is not None
                    node, count = run.node_id, count + 1
                    assert approval_id in [q.id for q in await client.list_approvals()]
                    assert await client.resolve_approval(approval_id, "approve_once")
                    assert (await end_of(client, run_id)).answer == "Done."
                    assert not await client.resolve_approval(approval_id, "deny")
                assert await client.list_approvals() == []
                assert await anyio.Path(me.work / "hello.txt").read_text() == "hi"
