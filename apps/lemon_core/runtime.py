"""The one home of everything shared: passed in, never global; two can live in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from lemon_core.approvals import ExecApprovals
from lemon_core.bus import Bus
from lemon_core.capabilities import Capabilities
from lemon_core.clock import Clock
from lemon_core.config.cache import ConfigCache
from lemon_core.config.model import LemonConfig
from lemon_core.config.reload import ConfigReloader
from lemon_core.drain import Drain, DrainFn, DrainStep
from lemon_core.idempotency import Idempotency
from lemon_core.introspection import Introspection
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile, app_of, load_target
from lemon_core.runtime_env import RuntimeEnv
from lemon_core.runtime_status import RuntimeStatus, runtime_status
from lemon_core.secrets import Secrets
from lemon_core.state_lock import StateLock
from lemon_core.store import (
    ChatStateStore,
    PolicyStore,
    ProgressStore,
    ProjectBindingStore,
    RunStore,
    SessionSettingsStore,
    Store,
)
from lemon_core.supervisor import Supervisor
from lemon_core.telemetry import Telemetry
from lemon_core.tool_classes import ToolClassTable
from lemon_core.usage_meter import UsageMeter

T = TypeVar("T")

FINALIZE_RUN_HOOKS = "finalize_run_hooks"


@dataclass(eq=False, slots=True)
class Runtime:
    """What components get; each `app.py` takes out what its objects need.

    `serve` is False for one-shot commands: no port and no socket may be opened then. `environ` is
    the environment with `.env` filled in; `warnings` are the configuration's, one line each.

    `config`, `warnings` and `environ` change when a configuration file does (`config_reloader`):
    whoever reads them at each use follows, a component that took a value at its start keeps it.
    """

    profile: Profile
    config: LemonConfig
    warnings: tuple[str, ...]
    environ: MutableMapping[str, str]
    env: RuntimeEnv
    paths: PathSettings
    cwd: Path
    serve: bool
    clock: Clock
    lock: StateLock
    store: Store
    bus: Bus
    capabilities: Capabilities
    telemetry: Telemetry
    tool_classes: ToolClassTable
    runs: RunStore
    chat_states: ChatStateStore
    progress: ProgressStore
    session_settings: SessionSettingsStore
    policies: PolicyStore
    project_bindings: ProjectBindingStore
    secrets: Secrets
    approvals: ExecApprovals
    idempotency: Idempotency
    introspection: Introspection
    usage: UsageMeter
    supervisor: Supervisor
    # Set once the runtime is whole: both read for it.
    config_cache: ConfigCache = field(init=False)
    config_reloader: ConfigReloader = field(init=False)
    drain: Drain = field(default_factory=Drain)
    # What listens where, by name, for the line that tells a person; components add theirs.
    listening: dict[str, str] = field(default_factory=dict)
    # The apps whose components are up, in the order of their start.
    started: list[str] = field(default_factory=list)
    _services: dict[object, object] = field(default_factory=dict)

    def service(self, make: Callable[[Runtime], T]) -> T:
        """The one object of this runtime that `make` builds (a class or a function taking the
        runtime); it is built at the first call."""
        if make not in self._services:
            self._services[make] = make(self)
        return cast(T, self._services[make])

    def status(self, expected: Iterable[str] | None = None) -> RuntimeStatus:
        """Whether every app of `expected` (default: those of the profile) is up."""
        if expected is None:
            expected = map(app_of, self.profile.components)
        return runtime_status(self.started, expected)

    def on_drain(self, step: DrainStep, fn: DrainFn) -> None:
        """Have `fn` called when the runtime stops: `refuse`, then `end`, then `relay`."""
        self.drain.add(step, fn)

    def load_executor(self) -> object:
        """The object that the profile names as its executor; the gateway knows its type.

        Raises ValueError when the profile names none, ImportError or AttributeError when it is not
        there.
        """
        if self.profile.executor is None:
            raise ValueError(f"profile {self.profile.name!r} names no executor")
        return load_target(self.profile.executor)
