"""Is a server running on this state directory?"""

from __future__ import annotations

from typing import Final

from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings
from lemon_core.rpc.listen import UnixListen
from lemon_core.rpc.router_client import RouterClient
from lemon_core.state_lock import Holder, read_holder

POLL_MS: Final = 500


async def running(paths: PathSettings, clock: Clock) -> Holder | None:
    """Who holds the state directory, when the lock is held and the router answers within 2 s.

    Raises `StateDirUnusable` when the lock file cannot be read.
    """
    holder = read_holder(paths.runtime_lock)
    if holder is None:
        return None
    try:
        async with RouterClient(UnixListen(paths.router_socket), clock=clock) as router:
            await router.health()
    except LemonError:
        return None
    return holder


async def wait_healthy(
    paths: PathSettings, clock: Clock, *, timeout_ms: int = 30_000
) -> Holder | None:
    """Who holds the state directory, as soon as the router answers; None when it never does.

    Raises `StateDirUnusable` when the lock file cannot be read.
    """
    until = clock.monotonic_ms() + timeout_ms
    while True:
        holder = await running(paths, clock)
        left_ms = until - clock.monotonic_ms()
        if holder is not None or left_ms <= 0:
            return holder
        # A server that starts has no event to wait for; this is the schedule of looking again.
        await clock.sleep(min(POLL_MS, left_ms))
