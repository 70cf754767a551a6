"""Records the points of a conversation, and kills servers at them."""

from __future__ import annotations

import signal
import zlib
from collections import Counter
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
from tools.e2e.sweep.points import is_commit
from tools.e2e.sweep.verdict import Outcome

# Generous: it only ends a sweep that hangs.
TALK_S: Final = 60.0
AT_ONCE: Final = 2
"""So many homes at a time: a process often waits for the disk or for a connection."""

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


async def swept_shared(nodes: Nodes, store_url: str, kill_at: str = "") -> Swept:
    """As `swept`, with two routers and a gateway on one PostgreSQL store.

    The first router dies, and the second one, which was there all the time, goes on. That costs no
    run, and the conversation loses nothing.
    """
    with temp_home() as paths:
        home, said = Home(paths, store_url), Said()
        roles: tuple[Role, ...] = ("gateway", "router", "heir")
        async with AsyncExitStack() as stack:
            up: dict[Role, Node] = {}
            for role in roles:
                settings = Settings(kill_at if role == "router" else "", role=role)
                up[role] = await stack.enter_async_context(nodes.started(home, settings))
                if not await up[role].ready():
                    assert settings.kill_at, f"the {role} did not start"
            await _spoken(up["router"], home, said, converse)
            await _gone(up["router"], home, Settings(kill_at, role="router"))
            if kill_at:
                await _spoken(up["heir"], home, said, go_on, role="heir")
            for role in ("heir", "gateway"):
                up[role].stop()
                await _gone(up[role], home, Settings(role=role))
        outcome = await Outcome.of(home, said)
        return Swept(tuple(home.points("router")), outcome.check(crashes=0))


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
    node: Node,
    home: Home,
    said: Said,
    speak: Callable[[Talk], Awaitable[None]],
    *,
    role: Role = "router",
) -> None:
    """Speak until all is said, and have `node` go down then; or until it dies."""
    socket, clock = UnixListen(home.of(role).router_socket), SystemClock()
    trouble: list[BaseException] = []
    with anyio.move_on_after(TALK_S) as limit:
        async with RouterClient(socket, clock=clock) as client, anyio.create_task_group() as tasks:

            async def talk() -> None:
                try:
                    await speak(Talk(client, clock, home.work, said, patient=role == "heir"))
                except (LemonError, OSError) as exc:
                    # The client may notice before its death is known; if not, it is told below.
                    trouble.append(exc)
                else:
                    node.stop()

            tasks.start_soon(talk)
            await node.died()
            tasks.cancel_scope.cancel()
    assert not limit.cancelled_caught, f"it hangs after {list(said)}: {trouble}"


async def kill_at_each(
    points: Sequence[str], kill: Callable[[str], Awaitable[Swept]]
) -> tuple[list[str], Counter[str]]:
    """`kill` at every point, whatever came of those before it; what was wrong, and all fates."""
    faults: list[str] = []
    fates: Counter[str] = Counter()
    left = iter(points)

    async def work() -> None:
        for point in left:
            try:
                fates.update((await kill(point)).fates.values())
            except (AssertionError, ExceptionGroup) as exc:
                faults.append(f"{point}: {_told(exc)}")

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)
    return faults, fates


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def counted(points: Sequence[str]) -> str:
    """How many points there are, in words."""
    commits = sum(is_commit(point) for point in points)
    return f"{commits} points at commits and {len(points) - commits} at events"


def share(points: Sequence[str], part: int, parts: int) -> list[str]:
    """The points that fall to one of several sweeps, by name: each may record them itself."""
    return [point for point in points if zlib.crc32(point.encode()) % parts == part]
