"""Several gateways behind one router (specification lemon_router 8, 9)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import pytest

from lemon_core.bridges import (
    ExecutionRejected,
    HealthReport,
    RunSnapshot,
    SteerOutcome,
    StreamItem,
    StreamLost,
    SubmitReceipt,
)
from lemon_core.bus import Bus
from lemon_core.rpc.channel import PeerUnavailable
from lemon_core.runs import ExecutionCommand
from lemon_core.testing import FakeClock
from lemon_router.targets import NODE_LOST, WATCH_MS, EngineTargets, NodeGone
from lemon_router.tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio

ADDRESSES = ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")


class Node(ScriptedEngine):
    """A gateway with a name, whose subscribers can be told that it is gone."""

    def __init__(self, name: str) -> None:
        super().__init__(Bus())
        self.name = name
        self.lost_answers = 0
        self.steered: list[str] = []
        self.answered: list[str] = []
        self.gone = anyio.Event()

    async def health(self) -> HealthReport:
        if not self.is_available:
            raise PeerUnavailable("away")
        return HealthReport("lemon_gateway", "now", node_id=self.name)

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        receipt = await super().submit_execution(command)
        if self.lost_answers:
            self.lost_answers -= 1
            raise ExecutionRejected("it does not answer") from PeerUnavailable("cut")
        return SubmitReceipt(receipt.run_id, receipt.status, self.name, self.name)

    async def steer(self, run_id: str, *rest: object) -> SteerOutcome:
        self.steered.append(run_id)
        return await super().steer(run_id, "s", "t", "steer")

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        self.answered.append(approval_id)
        return True

    async def subscribe(self, run_id: str, after_seq: int = 0) -> AsyncGenerator[StreamItem, None]:
        if after_seq:
            yield await self.get_run(run_id)  # type: ignore[misc]
        await self.gone.wait()
        raise StreamLost(run_id, NODE_LOST)

    def give_up(self, reason: str) -> None:
        self.gone.set()


class Cluster:
    """Three gateways, what the admission records say, and who is alive."""

    def __init__(self) -> None:
        self.nodes = {address: Node(f"n{number}") for number, address in enumerate(ADDRESSES)}
        self.recorded: dict[str, str] = {}
        self.alive = {node.name for node in self.nodes.values()}
        self.clock = FakeClock()
        self.targets = EngineTargets(
            self.nodes,
            clock=self.clock,
            node_of=self._node_of,
            run_of=self._run_of,
            alive=self._alive,
        )

    async def _node_of(self, run_id: str) -> str | None:
        return self.recorded.get(run_id)

    async def _run_of(self, approval_id: str) -> str | None:
        return approval_id.removeprefix("ask_")

    async def _alive(self, node_id: str) -> bool:
        return node_id in self.alive

    def on(self, run_id: str) -> Node:
        (node,) = [node for node in self.nodes.values() if run_id in node.runs]
        return node

    async def submit(self, run_id: str, session: str) -> Node:
        await self.targets.submit_execution(command(run_id, session))
        return self.on(run_id)


def command(run_id: str, session: str) -> ExecutionCommand:
    return ExecutionCommand(
        run_id=run_id, session_key=session, conversation_key=("session", session), prompt="hi"
    )


@pytest.mark.behaviour("lemon_router.45")
async def test_conversations_spread_and_stick() -> None:
    cluster = Cluster()
    first = {n: await cluster.submit(f"a{n}", f"s{n}") for n in range(30)}
    assert {node.name for node in first.values()} == {"n0", "n1", "n2"}
    for n, node in first.items():
        assert await cluster.submit(f"b{n}", f"s{n}") is node


async def test_only_the_conversations_of_a_silent_gateway_move() -> None:
    cluster = Cluster()
    first = {n: await cluster.submit(f"a{n}", f"s{n}") for n in range(30)}
    cluster.nodes[ADDRESSES[0]].is_available = False
    for n, node in first.items():
        moved = await cluster.submit(f"b{n}", f"s{n}")
        assert (moved is not node) == (node.name == "n0")


async def test_without_a_gateway_nothing_is_taken() -> None:
    cluster = Cluster()
    for node in cluster.nodes.values():
        node.is_available = False
    with pytest.raises(ExecutionRejected):
        await cluster.submit("a", "s")
    assert not await cluster.targets.available()


async def test_a_refused_run_goes_to_the_next_and_a_lost_answer_binds_it() -> None:
    cluster = Cluster()
    wanted, second, _ = (cluster.nodes[a] for a in cluster.targets.ranked(command("x", "s")))
    wanted.refuse_next = [ExecutionRejected("shutting down")]
    assert await cluster.submit("a", "s") is second
    wanted.lost_answers = 1
    with pytest.raises(ExecutionRejected):
        await cluster.submit("b", "s")
    wanted.is_available = False
    with pytest.raises(ExecutionRejected):
        await cluster.targets.submit_execution(command("b", "s"))
    assert "b" not in second.runs


@pytest.mark.behaviour("lemon_router.45")
async def test_calls_reach_the_node_of_the_record() -> None:
    cluster = Cluster()
    node = cluster.nodes[ADDRESSES[2]]
    await node.submit_execution(command("old", "s"))
    cluster.recorded["old"] = "n2"
    await cluster.targets.cancel_by_run_id("old", "user_requested")
    assert node.cancelled == [("old", "user_requested")]
    assert (await cluster.targets.steer("old", "s1", "more", "steer")).accepted
    assert await cluster.targets.resolve_approval("ask_old", "deny")
    assert node.answered == ["ask_old"]
    snapshot = await cluster.targets.get_run("old")
    assert isinstance(snapshot, RunSnapshot)
    assert await cluster.targets.get_run("unknown") is None
    assert not (await cluster.targets.steer("unknown", "s1", "more", "steer")).accepted


async def test_a_node_that_is_away_is_not_taken_for_dead() -> None:
    cluster = Cluster()
    cluster.recorded["old"] = "n9"
    cluster.alive.add("n9")
    with pytest.raises(NodeGone):
        await cluster.targets.get_run("old")
    await cluster.targets.cancel_by_run_id("old")
    cluster.alive.discard("n9")
    assert await cluster.targets.get_run("old") is None
    with pytest.raises(StreamLost, match=NODE_LOST):
        async with aclosing(cluster.targets.subscribe("old")) as items:
            await anext(items)


@pytest.mark.behaviour("lemon_router.45")
async def test_a_dead_node_loses_its_runs_and_new_work_goes_elsewhere() -> None:
    cluster = Cluster()
    node = await cluster.submit("a", "s")
    lost: list[str] = []

    async def follow() -> None:
        try:
            async with aclosing(cluster.targets.subscribe("a")) as items:
                async for _ in items:
                    pass
        except StreamLost as exc:
            lost.append(exc.reason)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cluster.targets.serve)
            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            node.is_available = False
            # Silent, but its process holds its lock: nothing moves.
            for _ in range(3):
                await cluster.clock.advance(WATCH_MS)
                await anyio.wait_all_tasks_blocked()
            assert lost == []
            cluster.alive.discard(node.name)
            await cluster.clock.advance(WATCH_MS)
            await anyio.wait_all_tasks_blocked()
            assert lost == []
            await cluster.clock.advance(WATCH_MS)
            await anyio.wait_all_tasks_blocked()
            assert lost == [NODE_LOST]
            assert await cluster.submit("b", "s") is not node
            tasks.cancel_scope.cancel()
