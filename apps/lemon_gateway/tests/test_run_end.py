"""The end of a run: what is committed, in which order, and that nothing broken holds it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import pytest

from lemon_core.bus import run_topic
from lemon_core.clock import Clock, SystemClock
from lemon_core.events import Completion
from lemon_core.resume import ChatState
from lemon_core.store import (
    KEEP,
    ChatStateChange,
    RunStore,
    Store,
    StoreSettings,
    StoreUnavailable,
    open_store,
)
from lemon_gateway.config import GatewaySettings
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.tests.fakes import (
    SESSION,
    Control,
    ScriptedExecutor,
    answer_hello,
    command,
    running_gateway,
    settle,
)

OVERFLOWS = [
    "context_length_exceeded",
    "Context Length Exceeded",
    "the context window is 8192 tokens",
    "HTTP 413",
    "Payload Too Large",
    "request entity too large",
    "string too long",
    "maximum length is 9",
    "input[3] is too big",
    "错误：上下文长度超过限制",
    "令牌数量超出",
    "输入过长",
    "超出最大长度",
    "上下文窗口已满",
]


@pytest.mark.behaviour("lemon_gateway.16")
async def test_summary_and_chat_state_are_there_when_the_end_is_told(tmp_path: Path) -> None:
    """Specification lemon_gateway 3.5: committed together before run_completed is published."""
    clock = SystemClock()
    async with open_store(StoreSettings("sqlite", tmp_path), clock) as store:
        with anyio.fail_after(5):
            executor = ScriptedExecutor(answer_hello)
            async with running_gateway(executor, clock=clock, store=store) as gateway:
                with gateway.bus.subscribe(run_topic("run_1")) as told:
                    await gateway.runtime.submit_execution(
                        command("run_1", meta={"model": "m:1", "agent_id": "coder", "origin": "t"})
                    )
                    while (await anext(told)).type != "run_completed":
                        # A run that still lives must not be resumed.
                        assert await gateway.chat_states.get(SESSION) is None
                    state = await gateway.chat_states.get(SESSION)
                    record = await gateway.records.get("run_1")
    assert state is not None
    assert (state.last_engine, state.last_resume_token) == ("lemon", "sess_1")
    assert record is not None
    assert record.summary is not None
    summary = dict(record.summary)
    completed = summary.pop("completed")
    assert isinstance(completed, Mapping)
    assert (completed["ok"], completed["answer"]) == (True, "hello")
    assert isinstance(summary.pop("duration_ms"), int)
    assert summary == {
        "session_key": SESSION,
        "run_id": "run_1",
        "agent_id": "coder",
        "origin": "t",
        "prompt": "hello",
        "cwd": "/tmp",
        "model": "m:1",
        "provider": None,
        "engine": "lemon",
        "meta": {"model": "m:1", "agent_id": "coder", "origin": "t"},
    }


async def end_with(before: ChatState | None, **completion: object) -> ChatState | None:
    """The session's chat state after a run that completed like this."""

    async def script(control: Control) -> None:
        await control.complete(**completion)  # type: ignore[arg-type]

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            if before is not None:
                await gateway.chat_states.put(SESSION, before)
            await gateway.runtime.submit_execution(command("run_1"))
            await gateway.end("run_1")
            return await gateway.chat_states.get(SESSION)


OLD = ChatState(last_engine="lemon", last_resume_token="sess_old")


@pytest.mark.behaviour("lemon_gateway.16")
@pytest.mark.parametrize("marker", OVERFLOWS)
async def test_each_overflow_marker_deletes_the_chat_state(marker: str) -> None:
    """Specification lemon_gateway 3.8: deleted, even if a token came along."""
    for error in (marker, {"code": "provider", "message": marker}):
        assert await end_with(OLD, ok=False, error=error, token="sess_new") is None


@pytest.mark.behaviour("lemon_gateway.16")
async def test_chat_state_without_token_or_with_a_foreign_one_stays() -> None:
    """Specification lemon_gateway 3.8: else leave as is; a non-native token is never stored."""
    for completion in ({}, {"token": "x", "engine": "other"}, {"ok": False, "error": "boom"}):
        state = await end_with(OLD, **completion)
        assert state is not None
        assert state.last_resume_token == "sess_old"
    assert await end_with(None, token="x", engine="other") is None


@pytest.mark.behaviour("lemon_gateway.16")
async def test_a_failed_run_with_a_native_token_can_be_continued() -> None:
    """Specification lemon_gateway 3.8: a completion with a native token puts it."""
    state = await end_with(OLD, ok=False, error="tool failed", token="sess_new")
    assert state is not None
    assert state.last_resume_token == "sess_new"


async def test_what_became_of_the_chat_state_is_told_with_the_end() -> None:
    """Specification lemon_gateway 3.8: the change travels in the terminal event."""

    async def script(control: Control) -> None:
        await control.complete(token="sess_1")

    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(script)) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            last = (await gateway.events("run_1"))[-1]
    assert last.meta["chat_state_change"] == "put"


class BrokenEnd(RunStore):
    """A store that loses its disk between the two commits."""

    async def finalize(
        self, run_id: str, summary: Mapping[str, object], chat_state: ChatStateChange = KEEP
    ) -> bool:
        raise StoreUnavailable("the disk is gone")


class BrokenBegin(RunStore):
    """A store that cannot write a begin mark."""

    async def begin(self, run_id: str, digest: bytes, *, session_key: str = "") -> bool:
        raise StoreUnavailable("the disk is full")


async def assert_next_run_is_free(
    records: Callable[[Store, Clock], RunStore], *, listener_raises: bool = False
) -> Completion:
    """Two runs of one session on one slot: the second gets slot and lock whatever broke."""
    settings = GatewaySettings(node_id="n", max_concurrent_runs=1, engine_lock_timeout_ms=0)

    def listen(_: ExecutionRequest, __: Completion) -> None:
        if listener_raises:
            raise RuntimeError("a broken listener")

    with anyio.fail_after(5):
        async with running_gateway(
            ScriptedExecutor(answer_hello), settings=settings, records=records
        ) as gateway:
            await gateway.runtime.submit(command("run_1"), on_complete=listen)
            await gateway.runtime.submit(
                command("run_2", conversation=("resume", "lemon", "other")), on_complete=listen
            )
            first = await gateway.end("run_1")
            second = await gateway.end("run_2")
            assert first.model_copy(update={"run_id": "run_2"}) == second
            await settle()
            assert gateway.runtime.scheduler.counts().in_flight == 0
            assert gateway.runtime.lock.counts() == (0, 0)
            assert gateway.runtime.scheduler.worker_count() == 0
            return first


@pytest.mark.behaviour("lemon_gateway.18")
async def test_a_store_that_fails_in_the_end_keeps_neither_slot_nor_lock() -> None:
    """Specification lemon_gateway 3.5: a failure in one step does not stop the later ones."""
    assert (await assert_next_run_is_free(BrokenEnd)).ok


async def test_a_store_that_fails_before_the_start_ends_the_run() -> None:
    """Specification lemon_gateway 3.5: store_unavailable, the executor is never called."""
    completed = await assert_next_run_is_free(BrokenBegin)
    assert isinstance(completed.error, dict)
    assert completed.error["code"] == "store_unavailable"


@pytest.mark.behaviour("lemon_gateway.18")
async def test_a_failing_listener_keeps_neither_slot_nor_lock() -> None:
    """Specification lemon_gateway 3.5: the failure of on_complete is logged only."""
    assert (await assert_next_run_is_free(RunStore, listener_raises=True)).ok


@pytest.mark.behaviour("lemon_gateway.18")
async def test_a_failing_bus_keeps_neither_slot_nor_lock() -> None:
    """Specification lemon_gateway 3.5: slot and lock are given back whatever breaks."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await settle()

            def refuse(*_: object) -> None:
                raise RuntimeError("no bus")

            gateway.bus.publish = refuse  # type: ignore[method-assign,assignment]
            await control.complete("done")
            await settle()
            del gateway.bus.publish
            assert gateway.runtime.scheduler.counts().in_flight == 0
            assert gateway.runtime.lock.counts() == (0, 0)
            record = await gateway.records.get("run_1")
            assert record is not None
            assert record.state == "finished"


@pytest.mark.behaviour("lemon_gateway.19")
@pytest.mark.parametrize("end", ["success", "failure", "cancel"])
async def test_the_progress_mapping_lives_as_long_as_the_run(end: str) -> None:
    """Specification lemon_gateway 3.5: registered after the start, dropped at the end."""
    meta: dict[str, object] = {"progress_msg_id": 17, "status_msg_id": "s-1"}
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.submit_execution(command("run_1", meta=meta))
            control = await gateway.executor.run("run_1")
            await settle()
            assert gateway.progress.get(SESSION, 17) == "run_1"
            assert gateway.progress.get(SESSION, "s-1") == "run_1"
            if end == "cancel":
                assert await gateway.runtime.cancel_by_progress_msg(SESSION, 17)
            else:
                await control.complete(ok=end == "success")
            await gateway.end("run_1")
            await settle()
            assert gateway.progress.get(SESSION, 17) is None
            assert gateway.progress.get(SESSION, "s-1") is None
            assert not await gateway.runtime.cancel_by_progress_msg(SESSION, 17)


async def test_the_local_listener_gets_the_request_and_its_completion() -> None:
    """Specification lemon_gateway 1.1: on_complete is an argument of the local submit call."""
    heard: list[tuple[str, Completion]] = []
    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(answer_hello)) as gateway:
            await gateway.runtime.submit(
                command("run_1"), on_complete=lambda req, done: heard.append((req.run_id, done))
            )
            completed = await gateway.end("run_1")
            await settle()
    assert heard == [("run_1", completed)]
