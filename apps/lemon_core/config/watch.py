"""Reload the configuration when a file of it changes, and look at it now and then anyway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from lemon_core.bus import SYSTEM_TOPIC, Bus
from lemon_core.clock import Clock
from lemon_core.config.reload import ConfigReloader, Source
from lemon_core.logs import get_logger
from lemon_core.store import StoreError

log = get_logger("lemon_core.config.watch")

DEBOUNCE_MS: Final = 250
# Secrets that another process stores are found this way too.
POLL_MS: Final = 5_000
# How long the operating system's events are collected, and how often the thread looks up.
_BURST_MS: Final = 100
_STEP_MS: Final = 100

_FILES: Final[tuple[Source, ...]] = ("files", "env")
_SECRETS: Final[tuple[Source, ...]] = ("secrets",)

# Calls the function for every burst of changes to one of the files; raises when it cannot watch.
Watch = Callable[[Iterable[Path], Callable[[], None]], Awaitable[None]]


class ConfigWatcher:
    """Calls the reloader 250 ms after the last change of a burst, and every five seconds."""

    def __init__(self, reloader: ConfigReloader, clock: Clock, bus: Bus, watch: Watch) -> None:
        self._reloader, self._clock, self._bus, self._watch = reloader, clock, bus, watch
        self._changed = anyio.Event()

    async def serve(self) -> None:
        """Watch until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            tasks.start_soon(self._poll)
            tasks.start_soon(self._follow_secrets)
            while True:
                await self._changed.wait()
                while self._changed.is_set():
                    self._changed = anyio.Event()
                    await self._clock.sleep(DEBOUNCE_MS)
                await self._reloader.reload(_FILES, reason="watcher")

    async def _follow(self) -> None:
        """Notice changes as the system tells them; without that there is still the poll."""
        try:
            await self._watch(self._reloader.watched, lambda: self._changed.set())
        except (ImportError, OSError) as exc:
            log.warning("config.watch_unavailable", error=str(exc))

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(POLL_MS)
            await self._reloader.reload(_FILES, reason="poll")
            await self._look_at_secrets("poll")

    async def _follow_secrets(self) -> None:
        with self._bus.subscribe(SYSTEM_TOPIC) as events:
            # What is there now is what later looks are compared with.
            await self._look_at_secrets("secrets_event")
            async for event in events:
                if event.type == "secret_changed":
                    await self._look_at_secrets("secrets_event")

    async def _look_at_secrets(self, reason: str) -> None:
        try:
            await self._reloader.reload(_SECRETS, reason=reason)
        except StoreError as exc:
            log.warning("config.secrets_not_looked_at", error=str(exc))


async def follow_files(paths: Iterable[Path], changed: Callable[[], None]) -> None:
    """Call `changed` for each burst of changes to one of the files, until cancelled.

    The folders are watched: a file that is replaced or not there yet has nothing to watch. A folder
    that is missing is not waited for. Raises ImportError and OSError where that cannot be had.
    """
    import watchfiles  # a compiled module and a thread: servers only

    files, folders = _places(paths)
    if not folders:
        return
    loop, stop = asyncio.get_running_loop(), threading.Event()

    def follow() -> None:
        for _ in watchfiles.watch(
            *folders,
            watch_filter=lambda change, path: path in files,
            recursive=False,
            debounce=_BURST_MS,
            step=_STEP_MS,
            stop_event=stop,
        ):
            if not stop.is_set():
                loop.call_soon_threadsafe(changed)

    try:
        # The thread sees within a step that nobody waits for it any more.
        await anyio.to_thread.run_sync(
            follow, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
    finally:
        stop.set()


def _places(paths: Iterable[Path]) -> tuple[frozenset[str], list[str]]:
    """The files under both their names, links followed or not, and their folders that exist."""
    given = tuple(paths)
    files = {path.absolute() for path in given} | {path.resolve() for path in given}
    folders = {file.parent for file in files if file.parent.is_dir()}
    return frozenset(map(str, files)), sorted(map(str, folders))
