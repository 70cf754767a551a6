"""Requests of a run to the editor that started it: read this file, run in that terminal.

Whoever speaks to the editor registers for a run and answers what arrives; the agent's tools ask.
Nothing of it leaves the process. `client_requests` gives a runtime's one bridge.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from lemon_core.clock import Clock, within
from lemon_core.errors import LemonError

if TYPE_CHECKING:
    from lemon_core.runtime import Runtime


class ClientRequestError(LemonError):
    """The editor did not answer; `run_id` and `method` say what was asked."""

    code = "client_request"

    def __init__(self, run_id: str, method: str, reason: str) -> None:
        super().__init__(f"{method} for run {run_id}: {reason}")
        self.run_id, self.method = run_id, method


class NoClient(ClientRequestError):
    """No editor is connected for the run."""

    code = "no_client"


class ClientDown(ClientRequestError):
    """The editor went away before it answered."""

    code = "client_down"


class ClientTimeout(ClientRequestError):
    """The editor did not answer in time."""

    code = "client_timeout"


class AlreadyRegistered(LemonError):
    """Another handler answers for the run."""

    code = "already_registered"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} has a client already")
        self.run_id = run_id


@dataclass(eq=False, slots=True)
class ClientRequest:
    """One question; `answer` it once, in any order with others. Late answers are dropped."""

    method: str
    params: Mapping[str, object]
    _done: anyio.Event = field(default_factory=anyio.Event)
    _response: object = None
    _answered: bool = False

    def answer(self, response: object) -> None:
        """Give the asking run `response`; only the first answer counts."""
        if not self._done.is_set():
            self._response, self._answered = response, True
            self._done.set()

    def abandon(self) -> None:
        """Tell the asking run that nobody will answer."""
        self._done.set()

    async def wait(self) -> tuple[bool, object]:
        """Whether there was an answer, and the answer."""
        await self._done.wait()
        return self._answered, self._response


class ClientRequests:
    """What the handler of a run iterates over; ends when its registration does."""

    def __init__(self) -> None:
        self._open: list[ClientRequest] = []
        # Each asker waits for its answer, so this never holds more than there are askers.
        self._send, self._receive = anyio.create_memory_object_stream[ClientRequest](float("inf"))

    def __aiter__(self) -> AsyncIterator[ClientRequest]:
        return self

    async def __anext__(self) -> ClientRequest:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def ask(self, request: ClientRequest) -> tuple[bool, object]:
        """Hand `request` to the handler and wait for what becomes of it."""
        self._open.append(request)
        try:
            self._send.send_nowait(request)
            return await request.wait()
        finally:
            self._open.remove(request)

    def close(self) -> None:
        """Nobody answers any more."""
        self._send.close()
        self._receive.close()
        for request in self._open:
            request.abandon()


class ClientRequestBridge:
    """The handlers of one runtime, by run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._handlers: dict[str, ClientRequests] = {}

    @asynccontextmanager
    async def register(self, run_id: str) -> AsyncIterator[ClientRequests]:
        """Answer for `run_id` within the block: iterate over what is asked.

        Raises `AlreadyRegistered`. When the block ends, whatever is not answered yet fails with
        `ClientDown`.
        """
        if run_id in self._handlers:
            raise AlreadyRegistered(run_id)
        requests = self._handlers[run_id] = ClientRequests()
        try:
            yield requests
        finally:
            del self._handlers[run_id]
            requests.close()

    async def request(
        self, run_id: str, method: str, params: Mapping[str, object], timeout_ms: int
    ) -> object:
        """What the client of `run_id` answers.

        Raises `NoClient` at once when there is none, `ClientDown` when its handler ends first, and
        `ClientTimeout`.
        """
        handler = self._handlers.get(run_id)
        if handler is None:
            raise NoClient(run_id, method, "no client is connected")
        asked = ClientRequest(method, params)
        try:
            answered, response = await within(self._clock, timeout_ms, lambda: handler.ask(asked))
        except TimeoutError:
            reason = f"the client did not answer within {timeout_ms} ms"
            raise ClientTimeout(run_id, method, reason) from None
        if not answered:
            raise ClientDown(run_id, method, "the client went away")
        return response


def client_requests(runtime: Runtime) -> ClientRequestBridge:
    """The bridge of a runtime: `runtime.service(client_requests)`."""
    return ClientRequestBridge(runtime.clock)
