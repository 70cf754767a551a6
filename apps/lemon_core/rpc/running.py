"""Is a server running on this state directory?"""

from __future__ import annotations

from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings
from lemon_core.rpc.listen import UnixListen
from lemon_core.rpc.router_client import RouterClient
from lemon_core.state_lock import Holder, read_holder


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
