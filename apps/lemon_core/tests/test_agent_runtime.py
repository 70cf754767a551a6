"""Questions to the running agent product (specification lemon_core 5.3)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.agent_runtime import AGENT_RUNTIME, CALL_TIMEOUT_MS, AgentRuntime
from lemon_core.capabilities import Capabilities
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


class Provider:
    """Has some callbacks, of every kind."""

    async def todo_progress(self, session_key: str) -> dict[str, object]:
        return {"session_key": session_key, "actionable_count": 2}

    def wasm_sidecar_running(self) -> bool:
        return False

    async def compact_session(self, session_key: str, **options: object) -> dict[str, object]:
        return {"status": "started", **options}

    async def run_graph(self, run_id: str) -> object:
        raise RuntimeError(run_id)

    def extension_dirs(self, cwd: str) -> list[str]:
        raise LookupError(cwd)

    async def list_tasks(self) -> list[object]:
        await anyio.sleep_forever()
        return []

    feature_progress = None


def agent(clock: FakeClock | None = None) -> AgentRuntime:
    """The runtime with the provider above."""
    runtime = AgentRuntime(Capabilities(), clock or FakeClock())
    runtime.register(Provider())
    return runtime


async def test_callbacks_answer_whether_async_or_not() -> None:
    runtime = agent()
    assert runtime.available()
    assert await runtime.call("todo_progress", "s", fallback=None) == {
        "session_key": "s",
        "actionable_count": 2,
    }
    assert await runtime.call("wasm_sidecar_running", fallback=True) is False
    assert await runtime.call("compact_session", "s", force=True, fallback=None) == {
        "status": "started",
        "force": True,
    }


@pytest.mark.behaviour("lemon_core.12")
async def test_without_a_provider_the_fallback_answers() -> None:
    runtime = AgentRuntime(Capabilities(), FakeClock())
    assert not runtime.available()
    assert await runtime.call("list_tasks", fallback="none") == "none"
    runtime.register(Provider())
    assert runtime.available()
    runtime.capabilities.clear(AGENT_RUNTIME)
    assert not runtime.available()


@pytest.mark.behaviour("lemon_core.12")
async def test_a_missing_callback_is_answered_by_the_fallback() -> None:
    assert await agent().call("get_task", "t", fallback=()) == ()
    assert await agent().call("feature_progress", "/x", fallback=()) == ()


@pytest.mark.behaviour("lemon_core.12")
async def test_a_callback_that_raises_is_answered_by_the_fallback() -> None:
    assert await agent().call("run_graph", "r", fallback={}) == {}
    assert await agent().call("extension_dirs", "/x", fallback=[]) == []
    # Wrong arguments raise too.
    assert await agent().call("wasm_sidecar_running", 1, fallback="x") == "x"


@pytest.mark.behaviour("lemon_core.12")
async def test_a_callback_that_takes_five_seconds_is_answered_by_the_fallback() -> None:
    clock, answers = FakeClock(), list[object]()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                answers.append(await agent(clock).call("list_tasks", fallback="late"))

            tasks.start_soon(ask)
            await clock.wait_for_sleepers()
            await clock.advance(CALL_TIMEOUT_MS - 1)
            assert answers == []
            await clock.advance(1)
    assert answers == ["late"]


async def test_the_callers_own_cancellation_is_no_fallback() -> None:
    with anyio.move_on_after(0) as scope:
        await agent().call("list_tasks", fallback=None)
    assert scope.cancelled_caught
