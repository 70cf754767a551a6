"""The one home of everything shared: passed in, never global; two can live in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from lemon_core.approvals import ExecApprovals
from lemon_core.bus import Bus
from lemon_core.capabilities import Capabilities
from lemon_core.clock import Clock
from lemon_core.config.model import LemonConfig
from lemon_core.drain import Drain, DrainFn, DrainStep
from lemon_core.idempotency import Idempotency
from lemon_core.introspection import Introspection
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile, load_target
from lemon_core.runtime_env import RuntimeEnv
from lemon_core.secrets import Secrets
from lemon_core.state_lock import StateLock
from lemon_core.store import (
    ChatStateStore,
    PolicyStore,
    ProgressStore,
    RunStore,
    SessionSettingsStore,
    Store,
)
from lemon_core.supervisor import Supervisor
from lemon_core.telemetry import Telemetry
from lemon_core.tool_classes import ToolClassTable

T = TypeVar("T")

FINALIZE_RUN_HOOKS = "finalize_run_hooks"


@dataclass(eq=False, slots=True)
class Runtime:
    """What components get; each `app.py` takes out what its objects need.

    `serve` is False for one-shot commands: no port and no socket may be opened then. `environ` is
    the environment with `.env` filled in; `warnings` are the configuration's, one line each.
    """

    profile: Profile
    config: LemonConfig
    warnings: tuple[str, ...]
    environ: Mapping[str, str]
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
    secrets: Secrets
    approvals: ExecApprovals
    idempotency: Idempotency
    introspection: Introspection
    supervisor: Supervisor
    drain: Drain = field(default_factory=Drain)
    # What listens where, by name, for the line that tells a person; components add theirs.
    listening: dict[str, str] = field(default_factory=dict)
    _services: dict[object, object] = field(default_factory=dict)

    def service(self, make: Callable[[Runtime], T]) -> T:
        """The one object of this runtime that `make` builds (a class or a function taking the
        runtime); it is built at the first call."""
        if make not in self._services:
            self._services[make] = make(self)
        return cast(T, self._services[make])

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
