"""A webhook whose server is killed at each step, started again, and asked once more.

Router and gateway run as they do in the server. Whatever the moment, the delivery is one run at the
most, and its sender can find out what became of it: the repeat names the run, and the run has an
end.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import aiohttp
import anyio
import pytest

from lemon_core.clock import SystemClock
from lemon_core.rpc.listen import UnixListen
from lemon_core.rpc.router_client import RouterClient
from lemon_core.testing import temp_home
from tools.e2e.sweep.conversation import ENDED
from tools.e2e.sweep.executor import Entry, Log
from tools.e2e.sweep.node import Home, Node, Nodes, Settings, nodes

TOKEN: Final = "a token for this sweep"
LEASE_MS: Final = 60_000
# Generous: it only ends a sweep that hangs.
STEP_S: Final = 60.0
FEWEST_POINTS: Final = 20

Mode = Literal["sync", "async"]
Answer = tuple[int, dict[str, object]]

CONFIG: Final = """
[gateway]
gateway_ingress_enabled = true
enable_webhook = true

[gateway.webhook]
port = 0
mode = "{mode}"

[gateway.webhook.integrations.ci]
token = "{token}"
"""


@pytest.fixture(scope="module", name="forked")
def _forked() -> Iterator[Nodes]:
    with nodes() as found:
        yield found


@dataclass(frozen=True, slots=True)
class Delivered:
    """A delivery and its repeats; `first` is None when the server died before it answered."""

    points: list[str]
    first: Answer | None
    repeats: list[Answer]
    executed: list[Entry]
    ended_as: str


@pytest.mark.behaviour("lemon_gateway.106")
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_delivery_is_one_run_wherever_the_server_dies(mode: Mode, forked: Nodes) -> None:
    """Specification lemon_gateway 6.3: kill at each commit and each event, and redeliver."""
    whole = await delivered(forked, mode)
    assert whole.first is not None
    assert whole.repeats == [whole.first] * 2
    assert whole.ended_as == "completed"
    steps = [point for point in whole.points if "webhook" in point or "run" in point]
    assert len(steps) >= FEWEST_POINTS
    lost = 0
    for point in steps:
        found = await delivered(forked, mode, point)
        _check(found, point)
        lost += found.ended_as != "completed"
    # Between its begin mark and its summary a run is lost, and only there.
    assert 0 < lost < len(steps)


def _check(found: Delivered, point: str) -> None:
    begun = [entry for entry in found.executed if entry.what == "begin"]
    assert len(begun) <= 1, point
    told = [body["run_id"] for _, body in found.repeats]
    assert len(set(told)) == 1, point
    assert all(200 <= status < 300 for status, _ in found.repeats), (point, found.repeats)
    if begun:
        assert begun[0].run_id == told[0], point
    if found.first is not None and found.first[0] < 300:
        assert found.first[1]["run_id"] == told[0], point
    assert found.ended_as in ENDED, point


async def delivered(forked: Nodes, mode: Mode, kill_at: str = "") -> Delivered:
    """Deliver to a server that dies at `kill_at`, and twice to the next one, for which the lease
    that the first one may have left is over."""
    with temp_home() as paths, anyio.fail_after(STEP_S):
        home = Home(paths)
        paths.config_file.parent.mkdir(parents=True)
        paths.config_file.write_text(CONFIG.format(mode=mode, token=TOKEN))
        async with forked.started(home, Settings(kill_at)) as server:
            first = await _first(server, kill_at)
            if kill_at:
                await server.died()
                assert server.ended_with() == -signal.SIGKILL
            elif first is not None:
                await _end_of(home, first)
        points = home.points("server")
        async with forked.started(home, Settings(ahead_ms=LEASE_MS + 1_000)) as server:
            assert await server.ready()
            repeats = [await _post(server) for _ in range(2)]
            ended_as = await _end_of(home, repeats[-1])
        return Delivered(points, first, repeats, Log(home.log_file).read(), ended_as)


async def _first(server: Node, kill_at: str) -> Answer | None:
    if not await server.ready():
        return None
    try:
        return await _post(server)
    except aiohttp.ClientError:
        assert kill_at, "the server died by itself"
        return None


async def _post(server: Node) -> Answer:
    url = f"{server.listening['webhook']}/webhooks/ci"
    headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": "delivery-1"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"prompt": "hook answer"}, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


async def _end_of(home: Home, answer: Answer) -> str:
    """How the run that `answer` names has ended, asked as anybody would ask the router."""
    run_id = answer[1]["run_id"]
    assert isinstance(run_id, str)
    clock = SystemClock()
    async with RouterClient(UnixListen(home.paths.router_socket), clock=clock) as client:
        while True:
            state = await client.admission(run_id)
            if state in ENDED:
                assert state is not None
                return state
            await clock.sleep(20)
