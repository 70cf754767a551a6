"""What checks and diagnostics look at: everything as it can be read, however broken it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lemon_core.clock import Clock
from lemon_core.config.model import LemonConfig
from lemon_core.doctor.report import Finding
from lemon_core.errors import LemonError
from lemon_core.master_key import MasterKeyChain
from lemon_core.paths import PathSettings, project_config
from lemon_core.profiles import Profile
from lemon_core.runtime_env import RuntimeEnv
from lemon_core.secrets import Secrets
from lemon_core.store import Store, StoreError
from lemon_core.store.sqlite_schema import FORMAT

if TYPE_CHECKING:
    from lemon_core.config.load import LoadedConfig


@dataclass(frozen=True, slots=True)
class DailyQuota:
    """What may be used on one day (UTC); whoever sets such limits hands them in."""

    measure: Literal["runs", "total", "cost_usd"]
    limit: float


@dataclass(frozen=True, slots=True)
class DoctorContext:
    """One installation, seen from one project directory.

    `config` holds what is usable of the configuration; what is not stands in `errors`, what should
    be said about it in `warnings`, each as `<file>:<line>: <path>: <message>`. `environ` has its
    gaps filled from `.env`.
    """

    paths: PathSettings
    environ: Mapping[str, str] = field(repr=False)
    project_dir: Path
    config: LemonConfig = field(repr=False)
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    env: RuntimeEnv
    profile: Profile | None
    clock: Clock
    keys: MasterKeyChain
    open_store: Callable[[], AbstractAsyncContextManager[Store]]
    make_secrets: Callable[[Store], Secrets]
    quotas: tuple[DailyQuota, ...] = ()

    @property
    def project_file(self) -> Path:
        """The project's configuration file, there or not."""
        return project_config(self.project_dir)

    @property
    def store_path(self) -> Path:
        """Where the embedded database is or will be."""
        from lemon_core.store.sqlite_file import database_file

        return database_file(self.paths.expand(self.config.store.path))

    @property
    def has_store(self) -> bool:
        """Whether there is a store to open: looking must neither make one nor change an old one."""
        backend: str = self.config.store.backend
        if backend != "sqlite":
            return backend != "memory"
        if not self.store_path.exists():
            return False
        try:
            return (store_format(self.store_path) or 0) >= FORMAT
        except StoreError:
            return True  # whoever opens it is told why it cannot be


def store_format(path: Path) -> int | None:
    """The format of the embedded database, None for a file without Lemon's tables.

    Changes nothing; raises `StoreError`.
    """
    from lemon_core.store.sqlite_file import reading

    with reading(path) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name='lemon_store_meta'").fetchone():
            row = db.execute("SELECT value FROM lemon_store_meta WHERE name='format'").fetchone()
            return int(row[0]) if row and str(row[0]).isdecimal() else None
    return None


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A named look at one thing. It may raise: that becomes a warning."""

    name: str
    look: Callable[[DoctorContext], Awaitable[Finding]]


@dataclass(frozen=True, slots=True)
class DoctorArea:
    """What one area of Lemon tells about itself in a support bundle, as JSON types.

    `leaves_out` says what the area holds back; it stands in the bundle beside the rest.
    """

    name: str
    leaves_out: tuple[str, ...]
    collect: Callable[[DoctorContext], Awaitable[Mapping[str, object]]]


DoctorItem = DoctorCheck | DoctorArea
"""What apps contribute, through a profile's `doctor_checks` or the capability of that name."""


def doctor_context(
    project_dir: Path,
    *,
    paths: PathSettings,
    environ: Mapping[str, str],
    clock: Clock,
    profile: Profile | None = None,
    open_store: Callable[[], AbstractAsyncContextManager[Store]] | None = None,
    quotas: tuple[DailyQuota, ...] = (),
) -> DoctorContext:
    """The context for `project_dir`; a configuration that cannot be used is no reason to raise.

    `open_store` is for a caller that has a store open already.
    """
    from lemon_core.bus import Bus
    from lemon_core.configured_store import open_configured_store
    from lemon_core.master_key import default_providers

    loaded, errors = _inspected(project_dir, paths, environ, profile)
    full_environ = dict(loaded.environ)
    keys = MasterKeyChain(default_providers(paths, full_environ))
    bus = Bus()

    def configured_store() -> AbstractAsyncContextManager[Store]:
        return open_configured_store(loaded.config, paths, full_environ, clock)

    return DoctorContext(
        paths=paths,
        environ=full_environ,
        project_dir=project_dir,
        config=loaded.config,
        errors=errors,
        warnings=loaded.warnings,
        env=RuntimeEnv.resolve(full_environ, paths),
        profile=profile,
        clock=clock,
        keys=keys,
        open_store=configured_store if open_store is None else open_store,
        make_secrets=lambda store: Secrets(store, clock, keys, bus, full_environ),
        quotas=quotas,
    )


def _inspected(
    project_dir: Path, paths: PathSettings, environ: Mapping[str, str], profile: Profile | None
) -> tuple[LoadedConfig, tuple[str, ...]]:
    """The usable configuration and its errors; an app that is not there is one of them."""
    from lemon_core.config.contributed import NOTHING_CONTRIBUTED, Contributed
    from lemon_core.config.load import inspect_config

    def inspect(contributed: Contributed) -> tuple[LoadedConfig, tuple[str, ...]]:
        defaults = None if profile is None else profile.config
        return inspect_config(
            project_dir,
            paths=paths,
            environ=environ,
            profile_defaults=defaults,
            contributed=contributed,
        )

    if profile is None:
        return inspect(NOTHING_CONTRIBUTED)
    try:
        return inspect(Contributed.of(profile))
    except (ImportError, AttributeError, LemonError) as exc:
        loaded, errors = inspect(NOTHING_CONTRIBUTED)
        return loaded, (f"the profile {profile.name} is not whole: {exc}", *errors)
