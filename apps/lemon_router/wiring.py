"""The router's objects, made for one runtime and given each other."""

from __future__ import annotations

from collections.abc import Callable

from anyio.abc import TaskGroup

from lemon_core import ids
from lemon_core.bindings import BindingResolver
from lemon_core.bridges import EngineRuntime
from lemon_core.event_bridge import EventBridge
from lemon_core.journal import Journal, JournalLimits
from lemon_core.nodes import node_watch
from lemon_core.runtime import Runtime
from lemon_router.admission import AdmissionStore
from lemon_router.builder import Builder
from lemon_router.compaction import CatalogWindows, PendingCompactions
from lemon_router.endings import Endings
from lemon_router.inbound import Inbound
from lemon_router.ownership import EverySession, Ownership
from lemon_router.queue_state import QueueRules
from lemon_router.requests import Submission
from lemon_router.router import Router
from lemon_router.surroundings import Surroundings


def build_router(
    runtime: Runtime,
    engine: EngineRuntime,
    tasks: TaskGroup,
    *,
    router_id: str | None = None,
    ownership: Ownership | None = None,
    forget_run: Callable[[str], None] = lambda run_id: None,
) -> Router:
    """The router of `runtime`; `tasks` owns its runs, `forget_run` hears of each that is over."""
    section, clock = runtime.config.router, runtime.clock
    compactions = PendingCompactions(runtime.store, runtime.runs, clock)
    builder = Builder(
        config=runtime.config,
        paths=runtime.paths,
        chat_states=runtime.chat_states,
        settings=runtime.session_settings,
        policies=runtime.policies,
        compactions=compactions,
    )

    async def try_again(submission: Submission) -> None:
        await router.try_again(submission)

    endings = Endings(
        config=runtime.config,
        clock=clock,
        compactions=compactions,
        windows=CatalogWindows(),
        questions=runtime.approvals,
        record=runtime.introspection.record,
        # A one-shot command ends with its run: the second one would start with the next server.
        try_again=try_again if runtime.serve else None,
    )
    around = Surroundings(
        engine=engine,
        records=runtime.runs,
        admissions=AdmissionStore(runtime.store),
        journal=Journal(
            epoch=router_id or ids.new_uuid(),
            clock=clock,
            limits=JournalLimits.of_section(section.rpc),
            on_drop=lambda run_id: router.forget_owner(run_id),
        ),
        bus=runtime.bus,
        clock=clock,
        tasks=tasks,
        late_resume=builder.bound,
        after_end=endings.after_end,
        alive=node_watch(runtime.store, "router"),
        forget_run=forget_run,
        followers=EventBridge(runtime.capabilities),
        ownership=ownership or EverySession(),
        rules=queue_rules(runtime),
        run_process_limit=section.run_process_limit,
        steer_ack_timeout_ms=section.steer_ack_timeout_ms,
        idle_timeout_ms=section.run_idle_watchdog_timeout_ms,
        emit=lambda name, facts: runtime.telemetry.emit(name, {"count": 1}, facts),
    )
    bindings = BindingResolver.of(
        runtime.config.gateway, paths=runtime.paths, changes=runtime.project_bindings
    )
    router = Router(
        builder=builder,
        around=around,
        inbound=Inbound(bindings),
        record=runtime.introspection.record,
    )
    return router


def queue_rules(runtime: Runtime) -> QueueRules:
    """How messages join, and how many may wait, as configured."""
    gateway_queue = runtime.config.gateway.queue
    return QueueRules(
        debounce_ms=runtime.config.router.followup_debounce_ms,
        cap=gateway_queue.cap,
        drop=gateway_queue.drop or "reject",
    )
