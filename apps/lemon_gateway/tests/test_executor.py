"""The boundary to the executor: which references are accepted, and the sink."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from lemon_gateway.executor import (
    CALLBACKS,
    ConfiguredExecutor,
    Executor,
    ExecutorError,
    RunHandle,
    RunOptions,
    RunSink,
    Sink,
    SteerResult,
)
from lemon_gateway.requests import EngineDelta, ExecutionRequest
from lemon_gateway.tests.fakes import ScriptedExecutor, settle

HERE = "lemon_gateway.tests.test_executor"


class Built:
    """A complete executor that remembers what it was built with."""

    def __init__(self, runtime: object) -> None:
        self.runtime = runtime

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        raise NotImplementedError

    async def cancel(self, control: object) -> None: ...

    async def steer(self, control: object, text: str) -> SteerResult:
        return "ok"

    async def redirect(self, control: object, text: str) -> SteerResult:
        return "ok"


class Exploding(Built):
    def __init__(self, runtime: object) -> None:
        raise RuntimeError("no services")


class Half:
    def __init__(self, runtime: object) -> None: ...

    async def start_run(self) -> None: ...

    cancel = "not callable"


INSTANCE = ScriptedExecutor()


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        (None, "executor_not_configured", "names no executor"),
        ("  ", "executor_not_configured", "names no executor"),
        ("some words", "invalid_executor", "package.module:Class"),
        ("module_only", "invalid_executor", "package.module:Class"),
        (":Executor", "invalid_executor", "package.module:Class"),
        ("a..b:Executor", "invalid_executor", "package.module:Class"),
        ("lemon_gateway.absent:Executor", "executor_not_loadable", "absent"),
        (f"{HERE}:Absent", "executor_not_loadable", "Absent"),
        (f"{HERE}:Half", "executor_missing_callbacks", "lacks cancel, steer, redirect"),
        (f"{HERE}:Exploding", "executor_resolution_exception", "no services"),
    ],
)
def test_each_fault_has_its_code(path: str | None, code: str, text: str) -> None:
    """Specification lemon_gateway 2: ok or exactly one reason."""
    error = ConfiguredExecutor(path, None).validate()
    assert error is not None
    assert error.code == code
    assert text in str(error)


def test_missing_callbacks_are_all_listed() -> None:
    """Specification lemon_gateway 2: missing callbacks, the list of all that are missing."""
    error = ConfiguredExecutor("lemon_gateway.requests:EngineDelta", None).validate()
    assert error is not None
    assert error.detail == {"missing": list(CALLBACKS)}
    assert error.value() == {
        "code": "executor_missing_callbacks",
        "message": "lemon_gateway.requests:EngineDelta lacks start_run, cancel, steer, redirect",
        "detail": {"missing": list(CALLBACKS)},
    }


def test_a_module_that_breaks_while_it_is_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specification lemon_gateway 1.4: executor_resolution_exception."""
    (tmp_path / "broken_executor_module.py").write_text("raise OSError('no licence')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    error = ConfiguredExecutor("broken_executor_module:Executor", None).validate()
    assert error is not None
    assert error.code == "executor_resolution_exception"
    assert "OSError: no licence" in str(error)


def test_a_class_is_built_once_with_the_runtime() -> None:
    """Specification lemon_gateway 2: one executor, named by dotted path."""
    runtime = object()
    configured = ConfiguredExecutor(f"{HERE}:Built", runtime)
    assert configured.validate() is None
    executor = configured.get()
    assert isinstance(executor, Built)
    assert executor.runtime is runtime
    assert configured.get() is executor


def test_an_object_is_used_as_it_is_and_checked_each_time() -> None:
    """Specification lemon_gateway 2: validated at start, in available(), and for every run."""
    configured = ConfiguredExecutor(f"{HERE}:INSTANCE", None)
    executor: Executor = configured.get()
    assert executor is INSTANCE
    INSTANCE.redirect = None  # type: ignore[assignment,method-assign]
    try:
        with pytest.raises(ExecutorError, match="lacks redirect"):
            configured.get()
    finally:
        del INSTANCE.redirect
    assert configured.validate() is None


async def test_the_sink_hands_out_everything_that_is_ready() -> None:
    """Specification lemon_gateway 2: bounded, in order."""
    sink = RunSink(capacity=2)
    sent: list[str] = []

    async def talk() -> None:
        for text in "abc":
            await sink.send(EngineDelta("ref", text))
            sent.append(text)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk)
            await settle()
            assert sent == ["a", "b"]
            assert await sink.receive_batch() == [EngineDelta("ref", "a"), EngineDelta("ref", "b")]
            await settle()
            assert await sink.receive_batch() == [EngineDelta("ref", "c")]


@pytest.mark.parametrize("drop", [True, False])
async def test_a_finished_sink_lets_senders_go(drop: bool) -> None:
    """Specification lemon_gateway 2: a full sink makes the executor wait, not for ever."""
    sink = RunSink(capacity=1)
    with anyio.fail_after(5):
        await sink.send(EngineDelta("ref", "a"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.send, EngineDelta("ref", "b"))
            await settle()
            if drop:
                sink.close()
            else:
                sink.end()
        await sink.send(EngineDelta("ref", "c"))
        left = [] if drop else [EngineDelta("ref", "a")]
        assert await sink.receive_batch() == left
        assert await sink.receive_batch() == []


async def test_a_paused_sink_hands_out_what_is_there_first_and_then_nothing_once() -> None:
    """Specification lemon_gateway 2: what was sent before `done` finished still counts."""
    sink = RunSink()
    with anyio.fail_after(5):
        await sink.send(EngineDelta("ref", "a"))
        sink.pause()
        assert await sink.receive_batch() == [EngineDelta("ref", "a")]
        assert await sink.receive_batch() == []
        await sink.send(EngineDelta("ref", "b"))
        assert await sink.receive_batch() == [EngineDelta("ref", "b")]
