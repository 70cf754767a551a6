"""`bare_server.py EVENTS SOCKET`: grpc.aio and nothing else, streaming recorded events.

EVENTS is a serialized RunEventFrame that holds the events of one run. `Single` sends each of them
in a message of its own, `Batched` all of them in one.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import anyio
import grpc
import grpc.aio

from lemon.execution.v1 import execution_pb2 as pb
from lemon.router.v1 import router_pb2 as router_pb

SERVICE: Final = "bench.Bare"
READY: Final = "ready"


def handler(events: Sequence[pb.RunEvent]) -> grpc.GenericRpcHandler:
    """Both calls, whatever is asked."""
    single = [pb.RunEventFrame(events=[event]) for event in events]
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {"Single": _stream(single), "Batched": _stream([pb.RunEventFrame(events=events)])},
    )


def _stream(
    frames: Sequence[pb.RunEventFrame],
) -> grpc.RpcMethodHandler[router_pb.RunRequest, pb.RunEventFrame]:
    async def stream(_: router_pb.RunRequest, __: object) -> AsyncIterator[pb.RunEventFrame]:
        for frame in frames:
            yield frame

    return grpc.unary_stream_rpc_method_handler(
        stream,
        request_deserializer=router_pb.RunRequest.FromString,
        response_serializer=pb.RunEventFrame.SerializeToString,
    )


async def serve(events_file: Path, socket: Path) -> None:
    """Serve until SIGTERM."""
    recorded = pb.RunEventFrame.FromString(await anyio.Path(events_file).read_bytes())
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler(recorded.events),))
    server.add_insecure_port(f"unix:{socket}")
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        await server.start()
        print(READY, flush=True)
        async for _ in signals:
            break
    await server.stop(0)


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]), Path(sys.argv[2]))
