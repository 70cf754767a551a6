"""A router with a scripted gateway, and everything a test looks at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc

from lemon_core.bindings import BindingResolver
from lemon_core.bridges import SubmitResult
from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.config.model import LemonConfig
from lemon_core.events import Event, RunPhaseChanged
from lemon_core.journal import Journal
from lemon_core.paths import PathSettings
from lemon_core.resume import ResumeToken
from lemon_core.store import (
    ChatStateStore,
    PolicyStore,
    RunStore,
    SessionSettingsStore,
    Store,
    StoreSettings,
    open_store,
)
from lemon_core.testing import FakeClock
from lemon_router.admission import AdmissionStore
from lemon_router.builder import Builder
from lemon_router.compaction import PendingCompactions
from lemon_router.endings import Endings
from lemon_router.inbound import Inbound
from lemon_router.ownership import EverySession, Ownership
from lemon_router.queue_state import QueueRules
from lemon_router.requests import Submission
from lemon_router.router import Router
from lemon_router.surroundings import Surroundings
from lemon_router.tests.scripted_engine import ScriptedEngine

SESSION = "agent:default:main"
TOKEN = ResumeToken(engine="lemon", value="sess_1")


@dataclass
class Followers:
    """Who asked for a run's events, and who let go of them."""

    subscribed: list[str] = field(default_factory=list)
    unsubscribed: list[str] = field(default_factory=list)

    def subscribe_run(self, run_id: str) -> None:
        self.subscribed.append(run_id)

    def unsubscribe_run(self, run_id: str) -> None:
        self.unsubscribed.append(run_id)


@dataclass
class SmallWindows:
    """Every known model has a window of 1,000 tokens, and a token is a character."""

    def window_of(self, model: str) -> int | None:
        return None if model == "unknown" else 1_000

    def estimate(self, text: str) -> int:
        return len(text)


@dataclass
class Settled:
    """The runs whose questions were ended."""

    runs: list[tuple[str, str]] = field(default_factory=list)

    async def settle_run(self, run_id: str, reason: str) -> int:
        self.runs.append((run_id, reason))
        return 1


@dataclass
class Setup:
    """What differs between routers of tests."""

    limit: int | None = None
    rules: QueueRules = field(default_factory=QueueRules)
    config: dict[str, object] = field(default_factory=dict)
    idle_timeout_ms: int = 0
    tries_again: bool = True


@dataclass
class Seen:
    """What a router told others."""

    followers: Followers = field(default_factory=Followers)
    settled: Settled = field(default_factory=Settled)
    recorded: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    emitted: list[tuple[str, dict[str, object]]] = field(default_factory=list)


@dataclass
class Rig:
    """A router with a scripted gateway and everything a test looks at."""

    router: Router
    engine: ScriptedEngine
    bus: Bus
    clock: FakeClock
    store: Store
    chat_states: ChatStateStore
    runs: RunStore
    seen: Seen

    async def submit(self, run_id: str, **fields: object) -> SubmitResult:
        return await self.router.submit({"prompt": "hi", "run_id": run_id, **fields})


def make_router(
    engine: ScriptedEngine,
    store: Store,
    bus: Bus,
    clock: Clock,
    home: Path,
    tasks: anyio.abc.TaskGroup,
    setup: Setup | None = None,
    seen: Seen | None = None,
    *,
    admissions: AdmissionStore | None = None,
    runs: RunStore | None = None,
    router_id: str = "router-epoch",
    alive: Callable[[str], Awaitable[bool]] | None = None,
    ownership: Ownership | None = None,
) -> Router:
    setup, seen = setup or Setup(), seen or Seen()
    config = LemonConfig.model_validate(setup.config)
    paths, runs = PathSettings(home), runs or RunStore(store, clock)
    compactions = PendingCompactions(store, runs, clock)
    builder = Builder(
        config=config,
        paths=paths,
        chat_states=ChatStateStore(store, clock),
        settings=SessionSettingsStore(store, clock),
        policies=PolicyStore(store),
        compactions=compactions,
    )

    def record(event_type: str, payload: dict[str, object], **ids: str | None) -> None:
        seen.recorded.append((event_type, payload))

    async def try_again(submission: Submission) -> None:
        await router.try_again(submission)

    endings = Endings(
        config,
        clock,
        compactions,
        SmallWindows(),
        seen.settled,
        record,
        try_again if setup.tries_again else None,
    )
    around = Surroundings(
        engine=engine,
        records=runs,
        admissions=admissions or AdmissionStore(store),
        journal=Journal(epoch=router_id, clock=clock),
        bus=bus,
        clock=clock,
        tasks=tasks,
        late_resume=builder.bound,
        after_end=endings.after_end,
        alive=alive,
        ownership=ownership or EverySession(),
        followers=seen.followers,
        rules=setup.rules,
        run_process_limit=setup.limit,
        idle_timeout_ms=setup.idle_timeout_ms,
        emit=lambda name, facts: seen.emitted.append((name, dict(facts))),
    )
    inbound = Inbound(BindingResolver.of(config.gateway, paths=paths))
    router = Router(builder=builder, around=around, inbound=inbound, record=record)
    return router


@asynccontextmanager
async def rig(
    home: Path,
    *,
    limit: int | None = None,
    rules: QueueRules | None = None,
    config: dict[str, object] | None = None,
    idle_timeout_ms: int = 0,
    tries_again: bool = True,
) -> AsyncIterator[Rig]:
    setup = Setup(limit, rules or QueueRules(), config or {}, idle_timeout_ms, tries_again)
    bus, clock, seen = Bus(), FakeClock(), Seen()
    engine = ScriptedEngine(bus)
    with anyio.fail_after(5):
        async with (
            open_store(StoreSettings("memory"), clock) as store,
            anyio.create_task_group() as tasks,
        ):
            router = make_router(
                engine,
                store,
                bus,
                clock,
                home,
                tasks,
                setup,
                seen,
            )
            chat_states = ChatStateStore(store, clock)
            yield Rig(router, engine, bus, clock, store, chat_states, RunStore(store, clock), seen)
            tasks.cancel_scope.cancel()


async def until_end(events: AsyncIterator[Event]) -> list[Event]:
    seen: list[Event] = []
    with anyio.fail_after(5):
        async for event in events:
            seen.append(event)
            if event.type in {"run_completed", "run_absorbed", "run_failed"}:
                break
    return seen


def phases(events: list[Event]) -> list[str]:
    return [e.payload.phase for e in events if isinstance(e.payload, RunPhaseChanged)]
