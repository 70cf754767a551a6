"""The load on the bare server: the same client work per event as in `router_load`."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import grpc.aio

from lemon.execution.v1 import execution_pb2 as pb
from lemon.router.v1 import router_pb2 as router_pb
from lemon_core.ids import new_uuid, run_id
from tools.bench.bare_server import READY, SERVICE
from tools.bench.processes import Started, running
from tools.bench.stats import Timing

Form = Literal["Single", "Batched"]


class BareLoad:
    """Calls the bare server; made by `bare_load`."""

    def __init__(self, channel: grpc.aio.Channel, form: Form, server: Started) -> None:
        self.server = server
        self._call = channel.unary_stream(
            f"/{SERVICE}/{form}",
            request_serializer=router_pb.RunRequest.SerializeToString,
            response_deserializer=pb.RunEventFrame.FromString,
        )

    async def run(self) -> Timing:
        """One stream, read to its end."""
        began, first = time.perf_counter(), 0.0
        request = router_pb.RunRequest(
            run_id=run_id(),
            session_key=f"agent:default:main:sub:{new_uuid()}",
            prompt="Say hello.",
            contract_version=1,
        )
        async for frame in self._call(request):
            for event in frame.events:
                if event.WhichOneof("payload") == "delta" and not first:
                    first = time.perf_counter() - began
        return Timing(first, time.perf_counter() - began)


@asynccontextmanager
async def bare_load(
    events: Sequence[pb.RunEvent], form: Form, scratch: Path
) -> AsyncIterator[BareLoad]:
    """A bare server in a process of its own, streaming `events`, and a client of it."""
    recorded, socket = scratch / "events.binpb", scratch / "bare.sock"
    await anyio.Path(recorded).write_bytes(pb.RunEventFrame(events=events).SerializeToString())
    command = [sys.executable, "-m", "tools.bench.bare_server", str(recorded), str(socket)]
    async with (
        running(command, ready=READY) as server,
        grpc.aio.insecure_channel(f"unix:{socket}") as channel,
    ):
        yield BareLoad(channel, form, server)
