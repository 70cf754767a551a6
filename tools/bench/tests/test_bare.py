"""The bare server and its client: every event arrives, in both forms."""

from __future__ import annotations

import anyio
import grpc.aio
import pytest

from lemon.execution.v1 import execution_pb2 as pb
from lemon.router.v1 import router_pb2 as router_pb
from lemon_core.testing import socket_dir
from tools.bench.bare_load import Form, bare_load
from tools.bench.bare_server import SERVICE

pytestmark = pytest.mark.anyio

EVENTS = [
    pb.RunEvent(event_seq=1, run_started=pb.RunStarted(engine="native")),
    pb.RunEvent(event_seq=2, delta=pb.Delta(seq=1, text="hello")),
    pb.RunEvent(event_seq=3, run_completed=pb.RunCompleted()),
]


@pytest.mark.parametrize(("form", "frames"), [("Single", 3), ("Batched", 1)])
async def test_it_streams_the_events(form: Form, frames: int) -> None:
    with socket_dir() as scratch, anyio.fail_after(30):
        async with bare_load(EVENTS, form, scratch) as bare:
            timing = await bare.run()
            assert 0 < timing.first_token_s <= timing.total_s
            async with grpc.aio.insecure_channel(f"unix:{scratch / 'bare.sock'}") as channel:
                call = channel.unary_stream(
                    f"/{SERVICE}/{form}",
                    request_serializer=router_pb.RunRequest.SerializeToString,
                    response_deserializer=pb.RunEventFrame.FromString,
                )
                got = [list(frame.events) async for frame in call(router_pb.RunRequest())]
    assert len(got) == frames
    assert [event for events in got for event in events] == EVENTS
