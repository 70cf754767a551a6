"""The boundary to the one native executor.

The profile names it by dotted path (`package.module:Class`). A class is called once with the
`Runtime`; any other object is used as it is. Whatever the executor does, a run ends in one
structured completion: nothing raised or returned here reaches further than the run it belongs to.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from lemon_gateway.errors import GatewayError, error_value, exception_text
from lemon_gateway.requests import ExecutionRequest, SinkMessage

SINK_CAPACITY = 1_024
CALLBACKS = ("start_run", "cancel", "steer", "redirect")

SteerResult = Literal["ok", "unsupported", "error"]


class ExecutorError(GatewayError):
    """The executor cannot be used, or refuses this run; `code` says why."""

    def __init__(
        self, code: str, message: str = "", detail: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message or code)
        self.code = code  # type: ignore[misc]  # here the code is a fact of the instance
        self.message, self.detail = message, detail

    def value(self) -> dict[str, object]:
        """The error as it stands in a completion."""
        return error_value(self.code, self.message, self.detail)


class Sink(Protocol):
    """Where an executor sends the messages of one run."""

    async def send(self, message: SinkMessage) -> None:
        """Hand over `message`; waits while 1,024 are unread, does nothing once the run ended."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Facts of a run that the gateway decided. `cwd` is absolute and inside the context's roots."""

    run_id: str
    cwd: str


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A started run. `run_ref` tags its messages, `control` comes back in the control calls.

    `done`, when given, finishes when the executor has nothing more to say: a run that has no
    completion one second later is ended. The gateway awaits it, and stops waiting when the run ends
    first; a task or future given here is never cancelled.
    """

    run_ref: str
    control: object
    done: Awaitable[object] | None = None


@runtime_checkable
class Executor(Protocol):
    """What the gateway needs of the thing that thinks."""

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        """Begin to execute and return at once; the work goes on in the executor's own tasks.

        Messages sent before this returns are kept, but only as many as the sink holds. Raises
        `ExecutorError` when the run cannot start.
        """

    async def cancel(self, control: object) -> None:
        """Stop the run; best effort, may be called for runs that are over."""

    async def steer(self, control: object, text: str) -> SteerResult:
        """Give the run more input at its next step."""

    async def redirect(self, control: object, text: str) -> SteerResult:
        """Interrupt the model call in flight and go on with `text`."""


class RunSink:
    """The channel of one run: bounded, read in batches by the run alone."""

    def __init__(self, capacity: int = SINK_CAPACITY) -> None:
        self._capacity = capacity
        self._messages: deque[SinkMessage] = deque()
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._closed = self._paused = False

    async def send(self, message: SinkMessage) -> None:
        """See `Sink.send`. Does not yield while there is room."""
        while len(self._messages) >= self._capacity and not self._closed:
            self._writable.clear()
            await self._writable.wait()
        if not self._closed:
            self._messages.append(message)
            self._readable.set()

    async def receive_batch(self) -> list[SinkMessage]:
        """Everything that is there, waiting for the first; empty once paused or ended."""
        while not self._messages:
            if self._closed or self._paused:
                self._paused = False
                return []
            self._readable.clear()
            await self._readable.wait()
        batch = list(self._messages)
        self._messages.clear()
        self._writable.set()
        return batch

    def pause(self) -> None:
        """Let the reader find nothing, once, as soon as everything so far has been read."""
        self._paused = True
        self._readable.set()

    def end(self) -> None:
        """Take no more messages; what is unread can still be read. Waiting senders go on."""
        self._closed = True
        self._readable.set()
        self._writable.set()

    def close(self) -> None:
        """End the channel and drop what is unread."""
        self._messages.clear()
        self.end()


class ConfiguredExecutor:
    """The executor that the profile names, resolved when first needed and checked at every use.

    `argument` is what a class is called with: the runtime.
    """

    def __init__(self, path: str | None, argument: object) -> None:
        self.path = path or ""
        self._argument = argument
        self._resolved: object | None = None

    def validate(self) -> ExecutorError | None:
        """None when the executor can be used, else the one reason why not."""
        try:
            self.get()
        except ExecutorError as exc:
            return exc
        return None

    def get(self) -> Executor:
        """The executor; raises `ExecutorError`."""
        if self._resolved is None:
            self._resolved = self._resolve()
        _require_callbacks(self._resolved, self.path)
        return self._resolved  # type: ignore[return-value]  # checked by _require_callbacks

    def _resolve(self) -> object:
        target = load_reference(self.path)
        if not inspect.isclass(target):
            return target
        _require_callbacks(target, self.path)
        build: Callable[[object], object] = target
        try:
            return build(self._argument)
        except Exception as exc:  # a constructor may raise anything; the start must say what
            raise ExecutorError(
                "executor_resolution_exception", f"{self.path}: {exception_text(exc)}"
            ) from exc


def load_reference(path: str) -> object:
    """The object behind `package.module:attribute`; raises `ExecutorError`."""
    if not path.strip():
        raise ExecutorError(
            "executor_not_configured", "the profile names no executor: set its `executor` path"
        )
    module_name, _, attribute = path.partition(":")
    names = [*module_name.split("."), *attribute.split(".")]
    if not all(name.isidentifier() for name in names):
        raise ExecutorError(
            "invalid_executor", f"{path!r} is not a reference of the form package.module:Class"
        )
    try:
        target: object = importlib.import_module(module_name)
        for name in attribute.split("."):
            target = getattr(target, name)
    except (ImportError, AttributeError) as exc:
        raise ExecutorError(
            "executor_not_loadable", f"{path} cannot be imported: {exception_text(exc)}"
        ) from exc
    except Exception as exc:  # importing runs code that may raise anything
        raise ExecutorError(
            "executor_resolution_exception", f"{path}: {exception_text(exc)}"
        ) from exc
    return target


def _require_callbacks(target: object, path: str) -> None:
    missing = [name for name in CALLBACKS if not callable(getattr(target, name, None))]
    if missing:
        raise ExecutorError(
            "executor_missing_callbacks",
            f"{path} lacks {', '.join(missing)}",
            {"missing": missing},
        )
