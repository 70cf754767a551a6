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
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import anyio

from lemon_core import logs
from lemon_core.approvals import ExecApprovals
from lemon_core.bus import Bus
from lemon_core.capabilities import RUN_HISTORY, Capabilities
from lemon_core.checkpoints import checkpoints
from lemon_core.clock import Clock, SystemClock
from lemon_core.config.contributed import Contributed
from lemon_core.config.load import LoadedConfig, load_config, load_validated, with_stored
from lemon_core.config.migrate import migrate_at_start
from lemon_core.config.watch import ConfigWatcher, follow_files
from lemon_core.configured_store import open_configured_store, store_settings, without_store_url
from lemon_core.errors import LemonError
from lemon_core.idempotency import IDEMPOTENCY, Idempotency
from lemon_core.introspection import INTROSPECTION_LOG, Introspection
from lemon_core.live_config import keep_current, log_level
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
    ProjectBindingStore,
    RunStore,
    SessionSettingsStore,
    Store,
    StoreSettings,
    UsageStore,
)
from lemon_core.store.approvals import ExecApprovalStore
from lemon_core.store.sqlite_file import database_file
from lemon_core.store.sweeps import Sweep, serve_sweeps
from lemon_core.store.system_config import SystemConfigStore
from lemon_core.supervisor import Supervisor
from lemon_core.telemetry import Telemetry
from lemon_core.tool_classes import ToolClassTable
from lemon_core.usage_meter import UsageMeter

log = logs.get_logger("lemon_core.boot")

DRAIN_BUDGET_MS: Final = 5_000
LAST_WRITES_S: Final = 1.0
HOOKS_SHARE: Final = 0.05
"""Of the drain budget: how long the hooks of the last runs may take before components unwind."""

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

    def read(project: Path | None, *, validate: bool) -> LoadedConfig:
        return (load_validated if validate else load_config)(
            project,
            paths=where,
            environ=given,
            overrides=overrides,
            profile_defaults=profile.config,
            contributed=Contributed.of(profile),
        )

    migration = migrate_at_start(where.config_file)
    loaded = read(cwd, validate=True)
    loaded = replace(loaded, warnings=(*migration, *loaded.warnings))
    env = RuntimeEnv.resolve(loaded.environ, where)
    logs.configure(log_level(loaded.config, env, serve=serve))
    role: Kind = kind or ("server" if serve else "one_shot")
    with single_errors():
        async with (
            hold_state_lock(where.runtime_lock, role, time) as lock,
            # Under the lock: two processes that rotate one file would lose lines.
            _logging_to_file(loaded, env, where) as told,
            hold_foreign_store(store_settings(loaded.config, where), where, role, time),
            open_configured_store(loaded.config, where, loaded.environ, time) as store,
        ):
            # The layer that was missing: what the control plane stored. The sections `store` and
            # `logging` have been used by now, which is why nothing stored can change them.
            stored = await SystemConfigStore(store).list()
            full = with_stored(told, stored) if stored else told
            runtime = _assemble(
                profile, full, env, where, cwd, serve=serve, clock=time, lock=lock, store=store
            )
            keep_current(runtime, full, read, given)
            try:
                # On a shared store another node's question is that node's to settle; on any other
                # a name that is not this node's is an earlier one of it.
                await runtime.approvals.settle_dead(lambda node_id, run_id: store.shared)
                async with _running(runtime, drain_budget_ms / 1000):
                    yield runtime
            finally:
                runtime.bus.stop()
                # Components record to their end, so this is written last.
                with anyio.move_on_after(LAST_WRITES_S, shield=True):
                    await runtime.introspection.close()
                    await runtime.usage.close()


@asynccontextmanager
async def hold_foreign_store(
    settings: StoreSettings, paths: PathSettings, kind: Kind, clock: Clock
) -> AsyncIterator[None]:
    """Own a database outside the state directory, which another runtime may name as well.

    The store mirrors tables in memory, so a file has one runtime. Raises `RuntimeBusy`.
    """
    file = None if settings.path is None else database_file(settings.path)
    if settings.backend != "sqlite" or file is None or file.is_relative_to(paths.state_dir):
        yield
        return
    async with hold_state_lock(file.with_name(f"{file.name}.lock"), kind, clock):
        yield


@asynccontextmanager
async def _logging_to_file(
    loaded: LoadedConfig, env: RuntimeEnv, paths: PathSettings
) -> AsyncIterator[LoadedConfig]:
    """`loaded`, with a warning when the configured log file cannot be opened."""
    settings = loaded.config.logging
    if settings.file is None:
        yield loaded
        return
    from lemon_core.log_file import MAX_BYTES, MAX_FILES, LogFile, log_file  # imports much

    file = LogFile(
        paths.expand(settings.file),
        level=settings.level or ("debug" if env.debug else "info"),
        max_bytes=settings.max_no_bytes or MAX_BYTES,
        max_files=settings.max_no_files or MAX_FILES,
        compress=bool(settings.compress_on_rotate),
    )
    with log_file(file) as problem:
        yield loaded if problem is None else replace(loaded, warnings=(*loaded.warnings, problem))


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
                tasks.start_soon(runtime.supervisor.run, "usage", runtime.usage.serve)
                if runtime.serve:
                    watcher = ConfigWatcher(
                        runtime.config_reloader, runtime.clock, runtime.bus, follow_files
                    )
                    tasks.start_soon(runtime.supervisor.run, "config_watcher", watcher.serve)
                tasks.start_soon(
                    serve_sweeps, runtime.runs, runtime.chat_states, runtime.clock, _sweeps(runtime)
                )
                tasks.start_soon(runtime.service(checkpoints).tidy)
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
                        await _last_hooks(runtime, self._drain_budget_s * HOOKS_SHARE)
                tasks.cancel_scope.cancel()
        if scope.cancelled_caught and self.ready.is_set():
            logs.get_logger("lemon_core.boot").warning("boot.unwind_cut_short")


async def _last_hooks(runtime: Runtime, budget_s: float) -> None:
    """Let the runs that just ended reach their hooks while the components behind those are up."""
    # Shielded: a component that crashed has cancelled the scope that this runs in.
    with anyio.move_on_after(budget_s, shield=True):
        await runtime.runs.flush()


def _sweeps(runtime: Runtime) -> dict[str, Sweep]:
    return {
        IDEMPOTENCY: runtime.idempotency.sweep,
        INTROSPECTION_LOG: runtime.introspection.sweep,
    }


async def _start(components: AsyncExitStack, runtime: Runtime, path: str) -> None:
    try:
        component = cast(Component, load_target(path))
        await components.enter_async_context(component(runtime))
        runtime.started.append(app_of(path))
        components.callback(runtime.started.remove, app_of(path))
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
    usage = UsageMeter(UsageStore(store), clock)
    capabilities.contribute(FINALIZE_RUN_HOOKS, usage.count)
    runs = RunStore(store, clock, hooks=lambda: capabilities.contributions(FINALIZE_RUN_HOOKS))
    capabilities.register(RUN_HISTORY, runs)
    # One map for all: what is imported into the secrets may leave the environment.
    environ = without_store_url(loaded.config, loaded.environ)
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
        runs=runs,
        chat_states=ChatStateStore(store, clock),
        progress=ProgressStore(store),
        session_settings=SessionSettingsStore(store, clock),
        policies=PolicyStore(store),
        project_bindings=ProjectBindingStore(store),
        secrets=Secrets(store, clock, keys, bus, environ),
        approvals=approvals,
        idempotency=Idempotency(store, clock),
        introspection=introspection,
        usage=usage,
        supervisor=Supervisor(clock),
    )


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, LemonError) else f"{type(error).__name__}: {error}"
