"""From a profile to a running runtime, and back down again in order.

Up: configuration, state lock, store, then the components of the profile. Down: the drain steps, the
components in reverse, the store, and last the lock, so that whoever gets the lock next finds a
closed database. Whatever ends the block (its end, an error, a signal's cancellation, a component
that crashes) takes the same way down.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from pathlib import Path
from typing import Final, cast

import anyio

from lemon_core import logs
from lemon_core.approvals import ExecApprovals
from lemon_core.bus import Bus
from lemon_core.capabilities import Capabilities
from lemon_core.clock import Clock, SystemClock
from lemon_core.config.load import LoadedConfig, load_validated
from lemon_core.config.model import LemonConfig
from lemon_core.errors import LemonError
from lemon_core.idempotency import IDEMPOTENCY, Idempotency
from lemon_core.introspection import INTROSPECTION_LOG, Introspection
from lemon_core.master_key import MasterKeyChain, default_providers
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile, app_of, load_target
from lemon_core.runtime import FINALIZE_RUN_HOOKS, Runtime
from lemon_core.runtime_env import RuntimeEnv
from lemon_core.secrets import Secrets
from lemon_core.single_errors import innermost, single_errors
from lemon_core.state_lock import Kind, StateLock, hold_state_lock
from lemon_core.store import (
    ChatStateStore,
    PolicyStore,
    ProgressStore,
    RunStore,
    SessionSettingsStore,
    Store,
    StoreSettings,
    open_store,
)
from lemon_core.store.approvals import ExecApprovalStore
from lemon_core.store.sqlite_file import database_file
from lemon_core.store.sweeps import Sweep, serve_sweeps
from lemon_core.supervisor import Supervisor
from lemon_core.telemetry import Telemetry
from lemon_core.tool_classes import ToolClassTable

log = logs.get_logger("lemon_core.boot")

DRAIN_BUDGET_MS: Final = 5_000
LAST_WRITES_S: Final = 1.0

Component = Callable[[Runtime], AbstractAsyncContextManager[None]]


class BootError(LemonError):
    """A component did not start; what had started before it is down again."""

    code = "boot_failed"

    def __init__(self, app: str, cause: BaseException) -> None:
        super().__init__(f"{app} did not start: {_told(cause)}")
        self.app, self.cause = app, cause


@asynccontextmanager
async def boot(
    profile: Profile,
    *,
    cwd: Path,
    environ: Mapping[str, str] | None = None,
    paths: PathSettings | None = None,
    serve: bool = True,
    kind: Kind | None = None,
    overrides: Mapping[str, object] | None = None,
    clock: Clock | None = None,
    drain_budget_ms: int = DRAIN_BUDGET_MS,
) -> AsyncIterator[Runtime]:
    """A runtime of `profile` for the block.

    Raises `ConfigError`, `RuntimeBusy` (another runtime owns the state directory), `StoreError`,
    and `BootError` for a component. `kind` defaults to `server` or, without `serve`, to `one_shot`.
    """
    given = os.environ if environ is None else environ
    where = PathSettings.resolve(given) if paths is None else paths
    time = SystemClock() if clock is None else clock
    loaded = load_validated(
        cwd, paths=where, environ=given, overrides=overrides, profile_defaults=profile.config
    )
    env = RuntimeEnv.resolve(loaded.environ, where)
    logs.configure(_log_level(loaded.config, env, serve=serve))
    role: Kind = kind or ("server" if serve else "one_shot")
    with single_errors():
        async with (
            hold_state_lock(where.runtime_lock, role, time) as lock,
            _hold_foreign_store(store_settings(loaded.config, where), where, role, time),
            open_store(store_settings(loaded.config, where), time) as store,
        ):
            runtime = _assemble(
                profile, loaded, env, where, cwd, serve=serve, clock=time, lock=lock, store=store
            )
            try:
                # No store is shared between nodes, so no other node's run can be waiting either.
                await runtime.approvals.settle_dead(lambda node_id, run_id: False)
                async with _running(runtime, drain_budget_ms / 1000):
                    yield runtime
            finally:
                runtime.bus.stop()
                # Components record to their end, so this is written last.
                with anyio.move_on_after(LAST_WRITES_S, shield=True):
                    await runtime.introspection.close()


def store_settings(config: LemonConfig, paths: PathSettings) -> StoreSettings:
    """The store that the configuration names."""
    return StoreSettings(config.store.backend, paths.expand(config.store.path))


@asynccontextmanager
async def _hold_foreign_store(
    settings: StoreSettings, paths: PathSettings, kind: Kind, clock: Clock
) -> AsyncIterator[None]:
    """Own a database outside the state directory, which another runtime may name as well.

    The store mirrors tables in memory, so a file has one runtime. Raises `RuntimeBusy`.
    """
    file = None if settings.path is None else database_file(settings.path)
    if settings.backend == "memory" or file is None or file.is_relative_to(paths.state_dir):
        yield
        return
    async with hold_state_lock(file.with_name(f"{file.name}.lock"), kind, clock):
        yield


@asynccontextmanager
async def _running(runtime: Runtime, drain_budget_s: float) -> AsyncIterator[None]:
    """Core's own tasks and the profile's components, up for the block and drained after it.

    They live in a task of their own, out of reach of whatever cancels the block: a run that is
    cancelled together with the block could not be ended and relayed any more.
    """
    host = _Host(runtime, drain_budget_s)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.run)
        try:
            await host.ready.wait()
            yield
        finally:
            host.end()


class _Host:
    """The task in which core's own tasks and the components live."""

    def __init__(self, runtime: Runtime, drain_budget_s: float) -> None:
        self.ready = anyio.Event()
        self._stop = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)
        self._runtime, self._drain_budget_s = runtime, drain_budget_s

    def end(self) -> None:
        """Go down in order; what is still starting is given up."""
        self._stop.set()
        if not self.ready.is_set():
            self._scope.cancel()

    async def run(self) -> None:
        """Start everything, stay up until `end`, and go down."""
        runtime = self._runtime
        with self._scope as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.supervisor.run, "finalize_hooks", runtime.runs.serve_hooks)
                tasks.start_soon(
                    runtime.supervisor.run, "introspection", runtime.introspection.serve
                )
                tasks.start_soon(
                    serve_sweeps, runtime.runs, runtime.chat_states, runtime.clock, _sweeps(runtime)
                )
                async with AsyncExitStack() as components:
                    try:
                        for path in runtime.profile.components:
                            await _start(components, runtime, path)
                        self.ready.set()
                        await self._stop.wait()
                    finally:
                        scope.deadline = anyio.current_time() + self._drain_budget_s
                        runtime.lock.mark_draining()
                        await runtime.drain.run(self._drain_budget_s)
                tasks.cancel_scope.cancel()
        if scope.cancelled_caught and self.ready.is_set():
            logs.get_logger("lemon_core.boot").warning("boot.unwind_cut_short")


def _sweeps(runtime: Runtime) -> dict[str, Sweep]:
    return {
        IDEMPOTENCY: runtime.idempotency.sweep,
        INTROSPECTION_LOG: runtime.introspection.sweep,
    }


async def _start(components: AsyncExitStack, runtime: Runtime, path: str) -> None:
    try:
        component = cast(Component, load_target(path))
        await components.enter_async_context(component(runtime))
    except Exception as exc:  # any fault of a component is told under its app's name
        cause = innermost(exc)
        raise BootError(app_of(path), cause) from cause


def _assemble(
    profile: Profile,
    loaded: LoadedConfig,
    env: RuntimeEnv,
    paths: PathSettings,
    cwd: Path,
    *,
    serve: bool,
    clock: Clock,
    lock: StateLock,
    store: Store,
) -> Runtime:
    telemetry, capabilities = Telemetry(), Capabilities()

    def backlog(topic: str, waiting: int) -> None:
        telemetry.emit("lemon.bus.backlog", {"waiting": waiting}, {"topic": topic})

    introspection = Introspection(store, clock, enabled=loaded.config.introspection.enabled)
    bus = Bus(strict=not env.production, on_backlog=backlog)
    approvals = ExecApprovals(
        ExecApprovalStore(store),
        bus,
        telemetry,
        introspection,
        clock,
        node_id=loaded.config.gateway.rpc.node_id or env.node_name,
        is_draining=lambda: lock.holder.state == "draining",
    )
    # One map for all: what is imported into the secrets may leave the environment.
    environ = dict(loaded.environ)
    keys = MasterKeyChain(default_providers(paths, environ))
    return Runtime(
        profile=profile,
        config=loaded.config,
        warnings=loaded.warnings,
        environ=environ,
        env=env,
        paths=paths,
        cwd=cwd,
        serve=serve,
        clock=clock,
        lock=lock,
        store=store,
        bus=bus,
        capabilities=capabilities,
        telemetry=telemetry,
        tool_classes=ToolClassTable(),
        runs=RunStore(store, clock, hooks=lambda: capabilities.contributions(FINALIZE_RUN_HOOKS)),
        chat_states=ChatStateStore(store, clock),
        progress=ProgressStore(store),
        session_settings=SessionSettingsStore(store, clock),
        policies=PolicyStore(store),
        secrets=Secrets(store, clock, keys, bus, environ),
        approvals=approvals,
        idempotency=Idempotency(store, clock),
        introspection=introspection,
        supervisor=Supervisor(clock),
    )


def _log_level(config: LemonConfig, env: RuntimeEnv, *, serve: bool) -> str:
    if config.logging.level is not None:
        return config.logging.level
    if env.debug:
        return "debug"
    # A one-shot command's stderr belongs to the person in front of it, who is told of failures
    # there.
    return "info" if serve else "off"


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, LemonError) else f"{type(error).__name__}: {error}"
