"""How Lemon and a kernel talk: JSON lines over one end of a socket pair.

A socket pair has no name that another process could open, also none in a sandbox, and wakes whoever
waits; files in a folder would have to be looked for. What a kernel sends is a script's word as much
as the runner's: it is bounded and checked. docs/decisions/0016-how-a-kernel-is-spoken-to.md
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final

import anyio
import anyio.lowlevel
import orjson

from coding_agent.errors import CodingAgentError
from coding_agent.kernel_runner import MARK, MAX_FRAME_BYTES

CHUNK_BYTES: Final = 65_536


class KernelGone(CodingAgentError):
    """The kernel has ended, or no longer says anything that could be read."""

    code = "kernel_gone"


class Wire:
    """Requests to a kernel and frames from it; for one task at a time."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._rest = bytearray()

    async def send(self, request: Mapping[str, object]) -> None:
        """Send a request; raises `KernelGone`."""
        data = memoryview(orjson.dumps(request) + b"\n")
        while data:
            try:
                data = data[self._end.send(data) :]
            except BlockingIOError:
                await self._ready(anyio.wait_writable)
            except OSError as exc:
                raise KernelGone(f"the kernel takes no requests: {exc.strerror}") from exc

    async def receive(self) -> dict[str, Any]:
        """The next frame; raises `KernelGone`."""
        # A script may write faster than this reads, and nothing here would ever have to wait.
        await anyio.lowlevel.checkpoint()
        while (end := self._rest.find(b"\n")) < 0:
            if len(self._rest) > MAX_FRAME_BYTES:
                raise KernelGone(f"the kernel sent more than {MAX_FRAME_BYTES} bytes in one frame")
            self._rest += await self._chunk()
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        try:
            frame = orjson.loads(line.removeprefix(MARK)) if line.startswith(MARK) else None
        except orjson.JSONDecodeError:
            frame = None
        if not isinstance(frame, dict):
            raise KernelGone("the kernel sent what is no frame")
        return frame

    def close(self) -> None:
        """No more is sent or received; who waits for a frame is woken."""
        anyio.notify_closing(self._end)
        self._end.close()

    async def _chunk(self) -> bytes:
        while True:
            try:
                chunk = self._end.recv(CHUNK_BYTES)
            except BlockingIOError:
                await self._ready(anyio.wait_readable)
                continue
            except OSError as exc:
                raise KernelGone(f"the kernel cannot be heard: {exc.strerror}") from exc
            if not chunk:
                raise KernelGone("the kernel has ended")
            return chunk

    async def _ready(self, wait: Any) -> None:
        try:
            await wait(self._end)
        except (anyio.ClosedResourceError, OSError, ValueError) as exc:
            raise KernelGone("the kernel has ended") from exc
