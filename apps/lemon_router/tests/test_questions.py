"""Open questions of runs, here and on other nodes (specification lemon_router 8)."""

from __future__ import annotations

import pytest

from lemon_core.approvals import TOPIC
from lemon_core.bus import Bus
from lemon_core.events import ApprovalRequested, ApprovalResolved, PendingApproval
from lemon_core.rpc.channel import PeerUnavailable
from lemon_router.questions import MAX_HEARD, Questions
from lemon_router.tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio


class Stored:
    """The questions of this node's store."""

    def __init__(self) -> None:
        self.open: dict[str, PendingApproval] = {}
        self.answers: list[tuple[str, str]] = []

    async def pending_approvals(self) -> list[PendingApproval]:
        return list(self.open.values())

    async def load_pending(self, approval_id: str) -> PendingApproval | None:
        return self.open.get(approval_id)

    async def resolve(self, approval_id: str, decision: str) -> bool:
        self.answers.append((approval_id, decision))
        return self.open.pop(approval_id, None) is not None


class Remote(ScriptedEngine):
    """A gateway on another node, which may be away."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self.answers: list[tuple[str, str]] = []
        self.away = False

    async def shares_bus(self) -> bool:
        if self.away:
            raise PeerUnavailable("away")
        return self.on_this_bus

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        if self.away:
            raise PeerUnavailable("away")
        self.answers.append((approval_id, decision))
        return True


def question(name: str, run_id: str | None = "run_1", at: int = 1) -> PendingApproval:
    return PendingApproval(id=name, tool="bash", run_id=run_id, requested_at_ms=at)


def asked(bus: Bus, pending: PendingApproval) -> None:
    payload = ApprovalRequested(approval_id=pending.id, pending=pending)
    bus.publish_event(TOPIC, "approval_requested", payload)


class Scene:
    def __init__(self) -> None:
        self.bus, self.stored, self.over = Bus(), Stored(), set[str]()
        self.engine = Remote(self.bus)
        self.questions = Questions(self.stored, engine=self.engine, ended=self._ended)

    async def _ended(self, run_id: str) -> bool:
        return run_id in self.over

    async def ids(self) -> list[str]:
        return [q.id for q in await self.questions.pending()]


async def test_stored_and_heard_questions_are_one_list() -> None:
    scene = Scene()
    with scene.questions.listening(scene.bus):
        scene.stored.open["b"] = question("b", at=2)
        asked(scene.bus, question("b", at=2))
        asked(scene.bus, question("a", at=1))
        assert await scene.ids() == ["a", "b"]
        resolved = ApprovalResolved(approval_id="a", decision="deny")
        scene.bus.publish_event(TOPIC, "approval_resolved", resolved)
        assert await scene.ids() == ["b"]
        asked(scene.bus, question("c", run_id="run_2"))
        scene.over.add("run_2")
        assert await scene.ids() == ["b"]


@pytest.mark.behaviour("lemon_router.44")
async def test_an_answer_goes_to_the_node_that_asks() -> None:
    scene = Scene()
    with scene.questions.listening(scene.bus):
        asked(scene.bus, question("far"))
        assert await scene.questions.resolve("far", "deny")
        assert scene.engine.answers == [("far", "deny")]
        scene.stored.open["own"] = question("own", run_id=None)
        assert await scene.questions.resolve("own", "deny")
        assert not await scene.questions.resolve("own", "deny")
        scene.engine.on_this_bus = True
        scene.stored.open["here"] = question("here")
        assert await scene.questions.resolve("here", "approve_once")
        assert scene.stored.answers == [("own", "deny"), ("here", "approve_once")]
        assert not await scene.questions.resolve("unknown", "deny")


async def test_a_node_that_is_away_says_so() -> None:
    scene = Scene()
    scene.engine.away = True
    scene.stored.open["far"] = question("far")
    with pytest.raises(PeerUnavailable):
        await scene.questions.resolve("far", "deny")
    assert scene.stored.answers == []


async def test_what_was_heard_is_bounded() -> None:
    scene = Scene()
    with scene.questions.listening(scene.bus):
        for number in range(MAX_HEARD + 5):
            asked(scene.bus, question(f"q{number}"))
        assert len(await scene.ids()) == MAX_HEARD
