"""A server of the sweep as a process: router and gateway, joined by gRPC over a Unix socket.

Processes are forked from a small one that has imported everything, so that one is up in a fraction
of a second; what they do from there on is what every server does.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Final, Literal

import anyio

from lemon_core.boot import boot
from lemon_core.clock import SystemClock
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.store import StoreSettings
from tools.e2e.sweep.executor import HOLDS, LOG_FILE
from tools.e2e.sweep.points import KILL_AT, POINTS_FILE

# Generous: these bounds only end a sweep that hangs.
START_S: Final = 60.0
STOP_S: Final = 30.0

Role = Literal["server", "router", "gateway", "heir"]
"""`server` is router and gateway in one process; the others are one of them each, and `heir` is a
second router on the store of the first."""

APPS: Final[dict[Role, tuple[str, ...]]] = {
    "server": ("lemon_gateway", "lemon_router"),
    "router": ("lemon_router",),
    "gateway": ("lemon_gateway",),
    "heir": ("lemon_router",),
}
PRELOADED: Final = (
    "anyio._backends._asyncio",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "lemon_core.rpc.engine_client",
    "lemon_core.store.postgres",
    "lemon_core.store.sqlite",
    "lemon_gateway.app",
    "lemon_gateway.ingress_server",
    "lemon_gateway.rpc_server",
    "lemon_gateway.webhook.app",
    "lemon_router.app",
    "lemon_router.engines",
    "lemon_router.rpc_server",
    "tools.e2e.sweep.node",
    "watchfiles",
)
"""What a server imports on its way up."""


@dataclass(frozen=True, slots=True)
class Home:
    """What the processes of one sweep share; with a `store_url` their store as well."""

    paths: PathSettings
    store_url: str = ""

    def of(self, role: Role) -> PathSettings:
        """The home of a process: SQLite belongs to one, so a gateway by itself has its own."""
        folder = {"gateway": "gw", "heir": "heir"}.get(role)
        return self.paths if folder is None else PathSettings(self.paths.home / folder)

    def store(self, role: Role) -> StoreSettings:
        """The store of a process."""
        if self.store_url:
            return StoreSettings("postgres", url=self.store_url)
        return StoreSettings("sqlite", self.of(role).store_dir)

    def points_file(self, role: Role) -> Path:
        """The points that the last process of this role has passed."""
        return self.paths.home / f"{role}.points"

    @property
    def log_file(self) -> Path:
        """What was executed."""
        return self.paths.home / "executions.jsonl"

    @property
    def work(self) -> Path:
        """Where runs work."""
        return self.paths.home / "work"

    def points(self, role: Role) -> list[str]:
        """The names of the points that were passed."""
        return self.points_file(role).read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True, slots=True)
class Settings:
    """How a process behaves: where it dies, and whether runs wait to be told `finish`.

    Its wall clock is `ahead_ms` ahead, for what takes a while to run out.
    """

    kill_at: str = ""
    holds: bool = True
    role: Role = "server"
    ahead_ms: int = 0


class AheadClock(SystemClock):
    """A wall clock that somebody has put ahead."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970, and some more."""
        return super().now_ms() + self._ahead_ms


class Node:
    """A process that was started."""

    def __init__(self, process: ForkServerProcess, link: Connection) -> None:
        self._process, self._link = process, link
        self.listening: dict[str, str] = {}

    async def ready(self) -> bool:
        """True when the server takes work, False when it died on the way.

        From then on `listening` has its addresses.
        """
        with anyio.fail_after(START_S):
            await anyio.wait_readable(self._link.fileno())
        try:
            self.listening = self._link.recv()
        except EOFError:
            return False
        return True

    async def died(self) -> None:
        """Return when the process is gone."""
        await anyio.wait_readable(self._process.sentinel)

    def stop(self) -> None:
        """Let it go down in order; `died` returns when it is gone."""
        self._link.close()

    def ended_with(self) -> int | None:
        """The exit code of a process that is gone; below zero the number of the signal."""
        self._process.join(STOP_S)
        return self._process.exitcode


class Nodes:
    """Starts processes; get it with `nodes`."""

    def __init__(self, context: ForkServerContext) -> None:
        self._context = context

    @asynccontextmanager
    async def started(self, home: Home, settings: Settings) -> AsyncIterator[Node]:
        """A process for the block; killed at its end when it is still there."""
        home.work.mkdir(exist_ok=True)
        home.of(settings.role).home.mkdir(exist_ok=True)
        home.points_file(settings.role).unlink(missing_ok=True)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(home, settings, theirs))
        # Blocks for a moment. Not in a thread: multiprocessing looks after all its processes here,
        # and two threads would take each other's exit codes.
        process.start()
        theirs.close()
        try:
            yield Node(process, ours)
        finally:
            ours.close()
            process.kill()
            process.join(STOP_S)


@contextmanager
def nodes() -> Iterator[Nodes]:
    """What starts processes, for the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    before = os.environ.get("PYTHONPATH")
    # The process that forks is a new interpreter: it has to find what this one has found.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        yield Nodes(context)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def serve(home: Home, settings: Settings, link: Connection) -> None:
    """The process."""
    anyio.run(_serve, home, settings, link)


async def _serve(home: Home, settings: Settings, link: Connection) -> None:
    paths = home.of(settings.role)
    environ = {
        "HOME": str(paths.home),
        "PATH": os.environ["PATH"],
        POINTS_FILE: str(home.points_file(settings.role)),
        LOG_FILE: str(home.log_file),
        KILL_AT: settings.kill_at,
        HOLDS: "1" if settings.holds else "0",
        "LEMON_STORE_URL": home.store_url,
    }
    profile = _profile(home, settings.role)
    clock = AheadClock(settings.ahead_ms)
    async with boot(
        profile, cwd=home.work, environ=environ, paths=paths, serve=True, clock=clock
    ) as runtime:
        link.send(dict(runtime.listening))
        # The other end is closed when it is time to go.
        await anyio.wait_readable(link.fileno())


def _profile(home: Home, role: Role) -> Profile:
    gateway = home.of("server" if role == "server" else "gateway").gateway_socket
    return Profile(
        "sweep",
        components=(
            "tools.e2e.sweep.points:component",
            *(f"{app}.app:component" for app in APPS[role]),
        ),
        executor="tools.e2e.sweep.executor:SweepExecutor",
        config={
            "gateway": {"health_enabled": False, "rpc": {"enabled": True}},
            "router": {
                "engine_runtime": "grpc",
                "engine_targets": [f"unix:{gateway}"],
                "health_enabled": False,
                "rpc": {"enabled": True},
                # Two follow-ups must join, however slow the machine is.
                "followup_debounce_ms": 600_000,
            },
            "store": {"backend": home.store(role).backend},
            "logging": {"level": "error"},
        },
    )
