"""The client's side of the stream of run events: one call per peer, shared by all readers.

The call is made when somebody reads and is made again when it ends, with every run subscribed to
from where its readers are. A reader therefore sees each event once and in order, or a snapshot in
place of what is gone, or an error; how often the connection broke in between it cannot tell.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Final, Never, Protocol

import anyio
import grpc
import grpc.aio

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.bridges import HealthReport, RunNotFound, StreamItem, StreamLost
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger
from lemon_core.rpc.channel import RETRY_BASE_MS, RETRY_MAX_MS, error_of
from lemon_core.rpc.fields import CONTRACT_VERSION
from lemon_core.rpc.run_events import event_from_message
from lemon_core.rpc.run_reader import ReaderQueue, RunReader
from lemon_core.rpc.snapshots import snapshot_from_message
from lemon_core.rpc.status import PermissionDenied, Unauthenticated
from lemon_core.rpc.wire_json import InvalidMessage
from lemon_core.util import capped_backoff

log = get_logger(__name__)

SILENCE_MS: Final = 45_000

_PERMANENT: Final = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class StreamCall(Protocol):
    """The part of grpc's bidirectional call that is used here."""

    async def read(self) -> object:
        """The next frame, or `grpc.aio.EOF`; raises `AioRpcError`."""

    async def write(self, request: pb.SubscribeControl, /) -> None:
        """Send a control; raises `AioRpcError`."""

    def cancel(self) -> bool:
        """End the call."""


class RunStreams:
    """All readers of one peer's runs. `serve` is the task that keeps the call going.

    `health` is asked before each call, for the peer's epoch, and its answer goes to `on_connected`.
    Without a connection for `lost_after_ms`, readers get `StreamLost` (None: they wait).
    """

    def __init__(
        self,
        open_call: Callable[[], StreamCall],
        health: Callable[[], Awaitable[HealthReport]],
        clock: Clock,
        *,
        on_connected: Callable[[HealthReport], None] | None = None,
        lost_after_ms: int | None = None,
    ) -> None:
        self._open_call, self._health, self._clock = open_call, health, clock
        self._on_connected = on_connected
        self._lost_after_ms = lost_after_ms
        self._readers: dict[str, dict[RunReader, ReaderQueue | None]] = {}
        self._wanted = asyncio.Event()
        self._outbox: deque[pb.SubscribeControl] = deque()
        self._due: dict[str, None] = {}  # runs to subscribe to, from where their readers are then
        self._something_to_say = asyncio.Event()
        self._epoch: str | None = None  # of the open call; None without one
        self._heard_at_ms = clock.monotonic_ms()

    @property
    def connected(self) -> bool:
        """True while the peer is known to be there."""
        return self._epoch is not None

    # --- readers ---

    async def read(self, run_id: str, after_seq: int = 0) -> AsyncGenerator[StreamItem, None]:
        """The run's items after `after_seq` until it is over.

        Raises `RunNotFound` and `StreamLost`. Close it with `contextlib.aclosing`.
        """
        queue = ReaderQueue()
        reader = RunReader(run_id, after_seq, queue.put)
        self.add(reader, queue)
        try:
            while items := await queue.get():
                for item in items:
                    yield item
                if reader.behind:
                    self._subscribe(run_id)
        finally:
            self.remove(reader)

    def add(self, reader: RunReader, queue: ReaderQueue | None = None) -> None:
        """Read for `reader` until it is over; `queue` is told of the end."""
        self._readers.setdefault(reader.run_id, {})[reader] = queue
        self._wanted.set()
        self._subscribe(reader.run_id)

    def remove(self, reader: RunReader) -> None:
        """Stop reading for `reader`."""
        run_id = reader.run_id
        readers = self._readers.get(run_id)
        if readers is None or reader not in readers:
            return
        del readers[reader]
        if not readers:
            del self._readers[run_id]
            if not reader.over:
                self._say(pb.SubscribeControl(unsubscribe=pb.Unsubscribe(run_id=run_id)))
        if not self._readers:
            self._wanted.clear()

    def _subscribe(self, run_id: str) -> None:
        """Ask for the run from where the last of its readers is, once for all that ask now."""
        if self._epoch is not None:
            self._due[run_id] = None
            self._something_to_say.set()

    def _say(self, control: pb.SubscribeControl) -> None:
        if self._epoch is not None:
            self._outbox.append(control)
            self._something_to_say.set()

    def _next_control(self) -> pb.SubscribeControl | None:
        """What to say now; what was to be said first, before any subscription."""
        if self._outbox:
            return self._outbox.popleft()
        while self._due and self._epoch is not None:
            run_id = next(iter(self._due))
            del self._due[run_id]
            if readers := self._readers.get(run_id):
                return _subscription(run_id, readers, self._epoch)
        return None

    # --- the call ---

    async def serve(self) -> Never:
        """Keep a call open while there are readers."""
        attempt, lost_at_ms = 0, self._clock.monotonic_ms()
        while True:
            if not self._wanted.is_set():
                await self._wanted.wait()
                lost_at_ms = self._clock.monotonic_ms()
            heard = await self._connect()
            now_ms = self._clock.monotonic_ms()
            if heard:
                attempt, lost_at_ms = 0, now_ms
            elif self._lost_after_ms is not None and now_ms - lost_at_ms >= self._lost_after_ms:
                self.fail_all("the connection is lost")
            await self._clock.sleep(capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS))
            attempt += 1

    async def _connect(self) -> bool:
        """One call from its start to its end; True when the peer said anything on it."""
        try:
            report = await self._health()
        except (Unauthenticated, PermissionDenied) as exc:
            self.fail_all(str(exc))
            return False
        except LemonError as exc:
            log.debug("rpc.peer_unreachable", error=exc.code)
            return False
        if self._on_connected is not None:
            self._on_connected(report)
        call = self._open_call()
        try:
            return await self._converse(call, report.stream_epoch)
        finally:
            self._epoch = None
            self._outbox.clear()
            self._due.clear()
            call.cancel()

    async def _converse(self, call: StreamCall, epoch: str) -> bool:
        self._epoch = epoch
        self._heard_at_ms = self._clock.monotonic_ms()
        self._say(pb.SubscribeControl(hello=pb.Hello(contract_version=CONTRACT_VERSION)))
        for run_id in tuple(self._readers):
            self._subscribe(run_id)
        heard = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send, call)
            tasks.start_soon(self._watch_silence, tasks.cancel_scope)
            while (frame := await self._receive(call)) is not None:
                heard = True
                self._heard_at_ms = self._clock.monotonic_ms()
                self._dispatch(frame)
            tasks.cancel_scope.cancel()
        return heard

    async def _send(self, call: StreamCall) -> None:
        try:
            while True:
                await self._something_to_say.wait()
                self._something_to_say.clear()
                while (control := self._next_control()) is not None:
                    await call.write(control)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reading side learns the same, with the reason

    async def _receive(self, call: StreamCall) -> pb.RunEventFrame | None:
        """The next frame; None at the end of the call."""
        try:
            frame = await call.read()
        except grpc.aio.AioRpcError as exc:
            log.debug("rpc.stream_ended", status=exc.code().name)
            if exc.code() in _PERMANENT:
                self.fail_all(str(error_of(exc, "")))
            return None
        return frame if isinstance(frame, pb.RunEventFrame) else None

    async def _watch_silence(self, scope: anyio.CancelScope) -> None:
        while (left_ms := self._heard_at_ms + SILENCE_MS - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep(left_ms)
        log.warning("rpc.stream_silent", silence_ms=SILENCE_MS)
        scope.cancel()

    # --- frames ---

    def _dispatch(self, frame: pb.RunEventFrame) -> None:
        for event in frame.events:
            if event.run_id in self._readers:
                self._deliver(event.run_id, event)
        match frame.WhichOneof("note"):
            case "snapshot":
                if frame.snapshot.run_id in self._readers:
                    self._deliver(frame.snapshot.run_id, frame.snapshot)
            case "not_found":
                self._fail(frame.not_found.run_id, RunNotFound(frame.not_found.run_id))
            case _:
                pass  # a heartbeat says no more than that it came, closing is followed by the end

    def _deliver(self, run_id: str, message: pb.RunEvent | pb.RunSnapshot) -> None:
        try:
            item: StreamItem = (
                event_from_message(message)
                if isinstance(message, pb.RunEvent)
                else snapshot_from_message(message)
            )
        except InvalidMessage as exc:
            self._fail(run_id, StreamLost(run_id, f"unreadable message ({exc})"))
            return
        again = False
        for reader, queue in tuple(self._readers[run_id].items()):
            reader.take(item)
            if reader.over:
                self.remove(reader)
                if queue is not None:
                    queue.end()
            again = again or (reader.behind and not reader.full)
        if again:
            self._subscribe(run_id)

    def fail_all(self, reason: str) -> None:
        """End every reader with `StreamLost`."""
        for run_id in tuple(self._readers):
            self._fail(run_id, StreamLost(run_id, reason))

    def _fail(self, run_id: str, failure: LemonError) -> None:
        for reader, queue in tuple(self._readers.get(run_id, {}).items()):
            reader.over = True
            self.remove(reader)
            if queue is not None:
                queue.end(failure)


def _subscription(run_id: str, readers: Iterable[RunReader], epoch: str) -> pb.SubscribeControl:
    for reader in readers:
        reader.subscribed(epoch)
    # One that counts in another epoch needs a snapshot first, whatever its number is.
    last = min(readers, key=lambda reader: (reader.epoch == epoch, reader.last_seq))
    return pb.SubscribeControl(
        subscribe=pb.Subscribe(
            run_id=run_id, after_seq=last.last_seq, stream_epoch=last.epoch or ""
        )
    )
