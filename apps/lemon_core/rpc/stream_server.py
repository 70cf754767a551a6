"""The server's side of the stream of run events: controls in, frames out, one call per peer."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import anyio

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.bridges import StreamItem
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.journal import Follower, Past
from lemon_core.rpc.fields import require_contract
from lemon_core.rpc.frames import pack
from lemon_core.rpc.status import PeerGone, PermissionDenied, SlowConsumer, TooManyStreams
from lemon_core.rpc.wire_json import InvalidMessage


class FrameWriter(Protocol):
    """The part of a call's context that sends."""

    async def write(self, message: pb.RunEventFrame, /) -> None:
        """Send one frame; returns when the transport has taken it."""


Resumed = Callable[[str, int, bool], None]
"""Told of each subscription that goes on after a number: the run, how many events it missed, and
whether a snapshot stands for some of them."""


class RunStreamServer:
    """One peer's stream.

    Frames are written by one task only; controls and heartbeats reach it by waking the follower.
    """

    def __init__(
        self,
        writer: FrameWriter,
        follower: Follower,
        *,
        past: Past | None,
        allowed: Callable[[str], bool],
        clock: Clock,
        heartbeat_ms: int,
        max_message_bytes: int,
        resumed: Resumed | None = None,
    ) -> None:
        self._writer, self._follower = writer, follower
        self._past, self._allowed = past, allowed
        self._clock, self._heartbeat_ms = clock, heartbeat_ms
        self._max_message_bytes = max_message_bytes
        self._resumed = resumed
        self._notes: deque[tuple[str, StreamItem | None]] = deque()
        self._failure: LemonError | None = None
        self._beat_due = self._stopping = self._controls_over = False
        self._frames_written = 0

    def stop(self) -> None:
        """Send what is ready, then close."""
        self._stopping = True
        self._follower.nudge()

    async def serve(self, controls: AsyncIterator[pb.SubscribeControl]) -> None:
        """Serve until the peer is done, or is too slow, or `stop`; a `LemonError` refuses it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, controls)
            tasks.start_soon(self._beat, tasks.cancel_scope)
            try:
                await self._write()
            except PeerGone as exc:
                self._failure = exc
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    # --- controls ---

    async def _read(self, controls: AsyncIterator[pb.SubscribeControl]) -> None:
        try:
            greeted = False
            async for control in controls:
                kind = control.WhichOneof("control")
                if not greeted:
                    if kind != "hello":
                        raise InvalidMessage("control", "the first one must be hello")
                    require_contract(control.hello.contract_version)
                    greeted = True
                elif kind == "subscribe":
                    await self._subscribe(control.subscribe)
                elif kind == "unsubscribe":
                    self._follower.discard(control.unsubscribe.run_id)
        except LemonError as exc:
            self._failure = exc
        self._controls_over = True
        self._follower.nudge()

    async def _subscribe(self, subscribe: pb.Subscribe) -> None:
        run_id = subscribe.run_id
        if not run_id:
            raise InvalidMessage("subscribe.run_id", "is required")
        if not self._allowed(run_id):
            raise PermissionDenied(f"run {run_id} was submitted by another peer")
        # Without an epoch a number says nothing; after 0 there is nothing to say.
        epoch = subscribe.stream_epoch if subscribe.after_seq else None
        if self._follower.add(run_id, subscribe.after_seq, epoch):
            if self._resumed is not None and epoch is not None:
                self._resumed(run_id, *self._follower.missed(run_id))
            return
        items = await self._past(run_id) if self._past is not None else ()
        self._notes.extend((run_id, item) for item in items)
        if not items:
            self._notes.append((run_id, None))
        self._follower.nudge()

    # --- frames ---

    async def _write(self) -> None:
        follower = self._follower
        while self._failure is None:
            await follower.wait()
            batch = follower.take()
            if self._notes:
                batch.extend(self._notes)
                self._notes.clear()
            for frame in pack(batch, self._max_message_bytes):
                await self._send(frame)
                if follower.overflowed.is_set():
                    await self._close("slow_consumer")
                    return
            if self._beat_due:
                self._beat_due = False
                now = pb.Heartbeat(ts_ms=self._clock.now_ms())
                await self._send(pb.RunEventFrame(heartbeat=now))
            if batch:
                follower.nudge()  # look once more: a nudge may have gone with this batch
                continue
            if self._stopping:
                await self._close("shutdown")
                return
            if self._controls_over and not follower.active and not self._notes:
                return

    async def _send(self, frame: pb.RunEventFrame) -> None:
        self._follower.sending()
        try:
            await self._writer.write(frame)
        except Exception as exc:  # grpc has several for a call that ended, some of them private
            raise PeerGone("the peer has gone") from exc
        self._frames_written += 1

    async def _close(self, reason: str) -> None:
        await self._send(pb.RunEventFrame(closing=pb.Closing(reason=reason)))

    async def _beat(self, scope: anyio.CancelScope) -> None:
        while True:
            written = self._frames_written
            await self._clock.sleep(self._heartbeat_ms)
            if self._follower.overflowed.is_set() and written == self._frames_written:
                # One frame has been stuck for a whole beat: the peer cannot even be told.
                self._failure = SlowConsumer()
                scope.cancel()
                return
            self._beat_due = True
            self._follower.nudge()


class StreamRegistry:
    """The open streams of one server, so that its end can let them go."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._open: dict[RunStreamServer, None] = {}
        self._stopping = False

    def __len__(self) -> int:
        return len(self._open)

    def stop(self) -> None:
        """Ask every stream, and every later one, to send what is ready and close."""
        self._stopping = True
        for stream in self._open:
            stream.stop()

    async def serve(
        self, stream: RunStreamServer, controls: AsyncIterator[pb.SubscribeControl]
    ) -> None:
        """Serve `stream` while keeping it in the registry; raises `TooManyStreams`."""
        if len(self._open) >= self._max_streams:
            raise TooManyStreams(f"{self._max_streams} streams are open already")
        self._open[stream] = None
        if self._stopping:
            stream.stop()
        try:
            await stream.serve(controls)
        finally:
            del self._open[stream]
