"""What `stack` measures, in the order in which it does, through the programs as they are built."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.paths import PathSettings
from lemon_core.single_errors import single_errors
from lemon_core.testing import temp_home
from tools.bench.bare_load import Form, bare_load
from tools.bench.load import closed_loop
from tools.bench.model import (
    PACE_MS,
    PACED,
    PACED_PROMPT,
    SHELL,
    TOKENS,
    TOOL_PROMPT,
    DirectModel,
    direct_model,
    running_model,
)
from tools.bench.processes import BenchError, Ended, Started, run_to_end, running
from tools.bench.router_load import RouterLoad, router_load
from tools.bench.stats import Load

AT_ONCE: Final = (1, 8, 50)
# More than any load here keeps going, so that none waits for a slot: the default is 2.
MAX_CONCURRENT_RUNS: Final = 64
CONFIG: Final = f"[gateway]\nmax_concurrent_runs = {MAX_CONCURRENT_RUNS}\n"
READY_LINE: Final = "In another terminal"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of everything is measured."""

    warm_up: int = 100
    at_1: int = 200
    at_8: int = 1_000
    at_50: int = 1_000
    tool_runs: int = 60
    paced_at_1: int = 6
    paced_at_8: int = 48
    paced_at_50: int = 200
    starts: int = 5
    versions: int = 15

    @classmethod
    def few(cls, runs: int) -> Counts:
        """At most `runs` of everything, to see that it works."""
        fields = (min(runs, getattr(cls(), name)) for name in cls.__dataclass_fields__)
        return cls(*fields)

    def plain(self, at_once: int) -> int:
        """Runs at `at_once` with a model that answers at once."""
        return {1: self.at_1, 8: self.at_8, 50: self.at_50}[at_once]

    def paced(self, at_once: int) -> int:
        """Runs at `at_once` with a model that takes its time."""
        return {1: self.paced_at_1, 8: self.paced_at_8, 50: self.paced_at_50}[at_once]


@dataclass(slots=True)
class Measured:
    """Everything that was measured; the loads by how many runs there were at once."""

    lemon: dict[int, Load] = field(default_factory=dict)
    model: dict[int, Load] = field(default_factory=dict)
    paced_lemon: dict[int, Load] = field(default_factory=dict)
    paced_model: dict[int, Load] = field(default_factory=dict)
    bare: dict[int, Load] = field(default_factory=dict)
    bare_batched: dict[int, Load] = field(default_factory=dict)
    tool: Load | None = None
    events_per_run: int = 0
    starts_s: list[float] = field(default_factory=list)
    one_shots: list[Ended] = field(default_factory=list)
    versions: list[Ended] = field(default_factory=list)
    idle_mib: float = 0.0
    mib_before_8: float = 0.0
    mib_after_8: float = 0.0


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs under test."""

    server: Path
    lemon: Path

    @classmethod
    def built(cls) -> Programs:
        """Those of the build, which lie beside this file; raises `BenchError` without them."""
        release = Path(__file__).parents[1] / "release"
        if not (release / "server").exists():
            raise BenchError("the programs are not built: bazel run //tools/bench:stack")
        return cls(release / "server", release / "lemon")


@dataclass(frozen=True, slots=True)
class Place:
    """An empty home with the configuration, and the environment that goes with it."""

    paths: PathSettings
    environ: dict[str, str]

    @property
    def work(self) -> Path:
        """Where runs work."""
        return self.paths.home / "work"

    @classmethod
    def make(cls, paths: PathSettings, base_url: str) -> Place:
        """Write the configuration into the empty home of `paths`."""
        paths.state_dir.mkdir(mode=0o700)
        paths.config_file.write_text(CONFIG, encoding="utf-8")
        place = cls(
            paths,
            {
                "HOME": str(paths.home),
                "PATH": os.environ["PATH"],
                "LEMON_GATEWAY_HEALTH_PORT": "0",
                "OPENAI_API_KEY": "none",
                "OPENAI_BASE_URL": base_url,
                # The programs find their files by these.
                **{name: text for name, text in os.environ.items() if name.startswith("RUNFILES")},
            },
        )
        place.work.mkdir()
        return place


async def measure(programs: Programs, counts: Counts, say: Say) -> Measured:
    """Measure everything once; `say` is told what comes next. Raises `BenchError`."""
    measured = Measured()
    with single_errors():
        await _everything(programs, counts, say, measured)
    return measured


async def _everything(programs: Programs, counts: Counts, say: Say, measured: Measured) -> None:
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(temp_home()).home
        base_url = await stack.enter_async_context(running_model(scratch))
        model = await stack.enter_async_context(direct_model(base_url))
        say("commands: --version, one-shot runs")
        with temp_home() as paths:
            await _commands(programs, counts, Place.make(paths, base_url), measured)
        say("server starts")
        for _ in range(counts.starts):
            with temp_home() as paths:
                async with _server(programs, Place.make(paths, base_url)) as server:
                    measured.starts_s.append(server.ready_s)
        paths = stack.enter_context(temp_home())
        place = Place.make(paths, base_url)
        server = await stack.enter_async_context(_server(programs, place))
        measured.idle_mib = server.resident_mib()
        router = await stack.enter_async_context(router_load(paths.router_socket, place.work))
        events = await router.record()
        measured.events_per_run = len(events)
        await closed_loop(router.run, at_once=8, count=counts.warm_up)
        await _plain(router, server, model, events, scratch, counts, measured, say)
        say("a shell tool")
        await _tools(router, model, counts, measured)
        for at_once in AT_ONCE:
            say(f"a model that takes its time, {at_once} at once")
            await _paced(at_once, router, model, counts, measured)


@asynccontextmanager
async def _server(programs: Programs, place: Place) -> AsyncIterator[Started]:
    async with running(
        [programs.server], ready=READY_LINE, environ=place.environ, cwd=place.work
    ) as server:
        yield server


async def _commands(programs: Programs, counts: Counts, place: Place, measured: Measured) -> None:
    async def once(*words: str) -> Ended:
        return await run_to_end(
            [programs.lemon, *words],
            environ=place.environ,
            cwd=place.work,
            scratch=place.paths.home,
        )

    # The first of each may still write bytecode.
    await once("--version")
    await once("run", "Say hello.")
    measured.versions += [await once("--version") for _ in range(counts.versions)]
    measured.one_shots += [await once("run", "Say hello.") for _ in range(counts.starts)]


async def _plain(
    router: RouterLoad,
    server: Started,
    model: DirectModel,
    events: Sequence[pb.RunEvent],
    scratch: Path,
    counts: Counts,
    measured: Measured,
    say: Say,
) -> None:
    """Lemon, the model alone and bare gRPC right after each other, for each number at once."""
    for at_once in AT_ONCE:
        count = counts.plain(at_once)
        say(f"{count} runs, {at_once} at once")
        before = server.resident_mib()
        measured.lemon[at_once] = await closed_loop(
            router.run, at_once=at_once, count=count, cpu_seconds=server.cpu_seconds
        )
        if at_once == 8:
            measured.mib_before_8, measured.mib_after_8 = before, server.resident_mib()
        measured.model[at_once] = await closed_loop(model.call, at_once=at_once, count=count)
        forms: tuple[tuple[Form, dict[int, Load]], ...] = (
            ("Single", measured.bare),
            ("Batched", measured.bare_batched),
        )
        for form, loads in forms:
            async with bare_load(events, form, scratch) as bare:
                await closed_loop(bare.run, at_once=at_once, count=min(count, counts.warm_up))
                loads[at_once] = await closed_loop(
                    bare.run, at_once=at_once, count=count, cpu_seconds=bare.server.cpu_seconds
                )


async def _tools(
    router: RouterLoad, model: DirectModel, counts: Counts, measured: Measured
) -> None:
    await model.queue([SHELL] * counts.tool_runs)
    measured.tool = await closed_loop(
        lambda: router.run(TOOL_PROMPT), at_once=1, count=counts.tool_runs
    )


async def _paced(
    at_once: int, router: RouterLoad, model: DirectModel, counts: Counts, measured: Measured
) -> None:
    count = counts.paced(at_once)
    # Runs of one length that begin together would stay together: one begins after the other.
    spread_s = TOKENS * PACE_MS / 1000
    await model.queue([PACED] * (2 * count))
    measured.paced_model[at_once] = await closed_loop(
        lambda: model.call(PACED_PROMPT), at_once=at_once, count=count, spread_s=spread_s
    )
    measured.paced_lemon[at_once] = await closed_loop(
        lambda: router.run(PACED_PROMPT), at_once=at_once, count=count, spread_s=spread_s
    )
