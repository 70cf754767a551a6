"""The router as producers see it: every call answers (specification lemon_core 5.1)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.bridges import ROUTER, KeepAlive, RouterBridge, RouterPort, SubmitResult
from lemon_core.capabilities import Capabilities
from lemon_core.errors import LemonError
from lemon_core.messages import InboundMessage, Peer
from lemon_core.runs import RunRequest

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("lemon_core.11")]

REQUEST = RunRequest(run_id="run_1", prompt="hello")
KEY = "agent:default:main"
MESSAGE = InboundMessage(channel_id="telegram", account_id="bot", peer=Peer(kind="dm", id="5"))


class Router:
    """Answers, raises, or never answers."""

    def __init__(self, failure: Exception | None = None, *, hangs: bool = False) -> None:
        self._failure, self._hangs = failure, hangs
        self.known: set[str | None] = set()

    async def _act(self) -> None:
        if self._hangs:
            await anyio.sleep_forever()
        if self._failure is not None:
            raise self._failure

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        await self._act()
        duplicate = request.run_id in self.known
        self.known.add(request.run_id)
        return SubmitResult("accepted", request.run_id, duplicate=duplicate)

    async def handle_inbound(self, message: InboundMessage) -> SubmitResult:
        await self._act()
        return SubmitResult("accepted", "run_2")

    async def abort_session(self, session_key: str, reason: str = "user_requested") -> None:
        await self._act()

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> None:
        await self._act()

    async def keep_run_alive(self, run_id: str, decision: KeepAlive) -> None:
        await self._act()

    async def session_busy(self, session_key: str) -> bool:
        await self._act()
        return True

    async def active_run(self, session_key: str) -> str | None:
        await self._act()
        return "run_1"

    async def list_active_sessions(self) -> list[dict[str, str]]:
        await self._act()
        return [{"session_key": KEY, "run_id": "run_1"}]

    async def counts(self) -> dict[str, int]:
        await self._act()
        return {"active": 1, "queued": 0, "completed_today": 2}

    async def admission(self, run_id: str) -> str | None:
        await self._act()
        return "submitted"


def bridge(router: RouterPort | None, timeout_ms: int = 5_000) -> RouterBridge:
    capabilities = Capabilities()
    if router is not None:
        capabilities.register(ROUTER, router)
    return RouterBridge(capabilities, timeout_ms=timeout_ms)


async def answers(router: RouterBridge) -> tuple[object, ...]:
    """What every call but the two submissions gives."""
    with anyio.fail_after(5):
        return (
            await router.abort_session(KEY),
            await router.abort_run("run_1"),
            await router.keep_run_alive("run_1", "continue"),
            await router.session_busy(KEY),
            await router.active_run(KEY),
            await router.list_active_sessions(),
            await router.counts(),
            await router.admission("run_1"),
        )


NOTHING: tuple[object, ...] = (False, None, [], {}, None)


async def test_a_router_answers() -> None:
    router = bridge(Router())
    assert await router.submit_run(REQUEST) == SubmitResult("accepted", "run_1")
    assert await router.submit_run(REQUEST) == SubmitResult("accepted", "run_1", duplicate=True)
    assert await router.handle_inbound(MESSAGE) == SubmitResult("accepted", "run_2")
    assert await answers(router) == (
        "ok",
        "ok",
        "ok",
        True,
        "run_1",
        [{"session_key": KEY, "run_id": "run_1"}],
        {"active": 1, "queued": 0, "completed_today": 2},
        "submitted",
    )


async def test_without_a_router_everything_is_unavailable() -> None:
    router = bridge(None)
    result = await router.submit_run(REQUEST)
    assert (result.status, result.run_id) == ("unavailable", "run_1")
    assert (await router.handle_inbound(MESSAGE)).status == "unavailable"
    assert await answers(router) == ("unavailable", "unavailable", "unavailable", *NOTHING)


@pytest.mark.parametrize("failure", [LemonError("full"), ValueError("broken" * 200)])
async def test_a_router_that_raises_has_rejected(failure: Exception) -> None:
    router = bridge(Router(failure))
    result = await router.submit_run(REQUEST)
    assert (result.status, result.run_id) == ("rejected", "run_1")
    assert result.reason is not None
    assert len(result.reason) <= 300
    assert await router.handle_inbound(MESSAGE) == SubmitResult("rejected", None, result.reason)
    assert await answers(router) == ("error", "error", "error", *NOTHING)


async def test_a_router_that_does_not_answer_leaves_the_outcome_unknown() -> None:
    router = bridge(Router(hangs=True), timeout_ms=1)
    with anyio.fail_after(5):
        result = await router.submit_run(REQUEST)
        inbound = await router.handle_inbound(MESSAGE)
    assert (result.status, result.run_id) == ("outcome_unknown", "run_1")
    assert (inbound.status, inbound.run_id) == ("outcome_unknown", None)
    assert await answers(router) == ("error", "error", "error", *NOTHING)


async def test_the_callers_own_cancellation_is_no_answer() -> None:
    router = bridge(Router(hangs=True))
    with anyio.move_on_after(0) as scope:
        await router.submit_run(REQUEST)
    assert scope.cancelled_caught
    with anyio.move_on_after(0) as scope:
        await router.counts()
    assert scope.cancelled_caught
