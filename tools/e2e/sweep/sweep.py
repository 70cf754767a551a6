"""Records the points of a conversation, and kills servers at them."""

from __future__ import annotations

import signal
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import anyio

from lemon_core.bridges import SubmitResult
from lemon_core.clock import SystemClock
from lemon_core.errors import LemonError
from lemon_core.rpc.listen import UnixListen
from lemon_core.rpc.router_client import RouterClient
from lemon_core.testing import temp_home
from tools.e2e.sweep.conversation import Fate, Talk, converse, go_on
from tools.e2e.sweep.node import Home, Node, Nodes, Role, Settings
from tools.e2e.sweep.verdict import Outcome

# Generous: it only ends a sweep that hangs.
TALK_S: Final = 60.0

Said = dict[str, SubmitResult | None]


class NotReached(AssertionError):
    """The process went past the place where it should have died."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A conversation that was gone on with to its end."""

    points: tuple[str, ...]
    """What the last process passed."""
    fates: dict[str, Fate]


async def swept(nodes: Nodes, *kills: str) -> Swept:
    """Have the conversation with a server that dies at each of `kills`, one process after another.

    Raises `AssertionError` where something does not hold, `NotReached` among them.
    """
    with temp_home() as paths:
        home, said = Home(paths), Said()
        for number, kill_at in enumerate([*kills, ""]):
            speak = converse if number == 0 else go_on
            settings = Settings(kill_at, holds=number == 0)
            async with nodes.started(home, settings) as server:
                if await server.ready():
                    await _spoken(server, home, said, speak)
                await _gone(server, home, settings)
        outcome = await Outcome.of(home, said)
        return Swept(tuple(home.points("server")), outcome.check(crashes=len(kills)))


async def swept_apart(nodes: Nodes, victim: Role, kill_at: str = "") -> Swept:
    """As `swept`, with router and gateway as two processes, of which `victim` dies.

    The other one lives on, and a new one takes the place of the victim. A router's death costs no
    run.
    """
    with temp_home() as paths:
        home, said = Home(paths), Said()
        roles: tuple[Role, ...] = ("gateway", "router")
        async with AsyncExitStack() as stack:
            up: dict[Role, Node] = {}
            for role in roles:
                settings = Settings(kill_at if role == victim else "", role=role)
                up[role] = await stack.enter_async_context(nodes.started(home, settings))
                assert await up[role].ready()
            if kill_at:
                await _spoken(up[victim], home, said, converse)
                await _gone(up[victim], home, Settings(kill_at, role=victim))
                # Of a router only its runs hold, which are with the gateway that lives on.
                settings = Settings(holds=False, role=victim)
                up[victim] = await stack.enter_async_context(nodes.started(home, settings))
                assert await up[victim].ready()
            await _spoken(up["router"], home, said, go_on if kill_at else converse)
            await _gone(up["router"], home, Settings(role="router"))
            up["gateway"].stop()
            await _gone(up["gateway"], home, Settings(role="gateway"))
        outcome = await Outcome.of(home, said, "gateway")
        lost = 1 if kill_at and victim == "gateway" else 0
        return Swept(tuple(home.points(victim)), outcome.check(crashes=lost))


async def _gone(node: Node, home: Home, settings: Settings) -> None:
    """The process is gone, in the way it should."""
    with anyio.fail_after(TALK_S):
        await node.died()
    code = node.ended_with()
    if not settings.kill_at:
        assert code == 0, f"the {settings.role} ended with {code}"
    elif code != -signal.SIGKILL or home.points(settings.role)[-1] != settings.kill_at:
        raise NotReached(f"{settings.kill_at!r} was not reached: the process ended with {code}")


async def _spoken(
    node: Node, home: Home, said: Said, speak: Callable[[Talk], Awaitable[None]]
) -> None:
    """Speak until all is said, and have `node` go down then; or until it dies."""
    socket, clock = UnixListen(home.paths.router_socket), SystemClock()
    trouble: list[BaseException] = []
    with anyio.move_on_after(TALK_S) as limit:
        async with RouterClient(socket, clock=clock) as client, anyio.create_task_group() as tasks:

            async def talk() -> None:
                try:
                    await speak(Talk(client, clock, home.work, said))
                except (LemonError, OSError) as exc:
                    # The client may notice before its death is known; if not, it is told below.
                    trouble.append(exc)
                else:
                    node.stop()

            tasks.start_soon(talk)
            await node.died()
            tasks.cancel_scope.cancel()
    assert not limit.cancelled_caught, f"it hangs after {list(said)}: {trouble}"


def share(points: Sequence[str], part: int, parts: int) -> list[str]:
    """The points that fall to one of several sweeps, by name: each may record them itself."""
    return [point for point in points if zlib.crc32(point.encode()) % parts == part]
