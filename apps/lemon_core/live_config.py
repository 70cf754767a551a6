"""The configuration of a booted runtime, kept current."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from lemon_core import logs
from lemon_core.config.cache import ConfigCache, config_files
from lemon_core.config.env import dotenv_file
from lemon_core.config.load import LoadedConfig, with_stored
from lemon_core.config.model import LemonConfig
from lemon_core.config.reload import ConfigPorts, ConfigReloader, Marks
from lemon_core.configured_store import without_store_url
from lemon_core.runtime import Runtime
from lemon_core.runtime_env import RuntimeEnv
from lemon_core.store.system_config import SystemConfigStore


class ReadConfig(Protocol):
    """Reads the configuration for work in `project`, all layers but the stored one."""

    def __call__(self, project: Path | None, *, validate: bool) -> LoadedConfig: ...


def keep_current(
    runtime: Runtime, loaded: LoadedConfig, read: ReadConfig, environ: Mapping[str, str]
) -> None:
    """Give `runtime`, booted with `loaded`, its cache and its reloader.

    `environ` is the environment of the process, in which `LEMON_DOTENV_DIR` may stand.
    """
    paths, dotenv = runtime.paths, dotenv_file(runtime.paths, environ)
    runtime.config_cache = ConfigCache(
        runtime.clock,
        load=lambda cwd: read(cwd, validate=False),
        files=lambda cwd: (*config_files(cwd, paths), dotenv),
    )

    async def load(validate: bool) -> LoadedConfig:
        files = await anyio.to_thread.run_sync(lambda: read(runtime.cwd, validate=validate))
        stored = await SystemConfigStore(runtime.store).list()
        return with_stored(files, stored) if stored else files

    async def secrets() -> Marks:
        infos = await runtime.secrets.list()
        return {info.name: (info.updated_at, info.expires_at) for info in infos}

    runtime.config_reloader = ConfigReloader(
        loaded,
        ConfigPorts(
            load=load,
            apply=lambda before, after: _apply(runtime, before, after),
            secrets=secrets,
            files=config_files(runtime.cwd, paths),
            dotenv=dotenv,
        ),
        runtime.bus,
        runtime.telemetry,
    )


def log_level(config: LemonConfig, env: RuntimeEnv, *, serve: bool) -> str:
    """How much a runtime logs to stderr."""
    if config.logging.level is not None:
        return config.logging.level
    if env.debug:
        return "debug"
    # A one-shot command's stderr belongs to the person in front of it, who is told of failures
    # there.
    return "info" if serve else "off"


def _apply(runtime: Runtime, before: LoadedConfig, after: LoadedConfig) -> None:
    old = without_store_url(before.config, before.environ)
    new = without_store_url(after.config, after.environ)
    # Only what changed: an imported secret that has left the environment must not come back.
    for name in {*old, *new}:
        if name not in new:
            runtime.environ.pop(name, None)
        elif old.get(name) != new[name]:
            runtime.environ[name] = new[name]
    runtime.config, runtime.warnings = after.config, after.warnings
    runtime.config_cache.forget()
    if before.config.logging.level != after.config.logging.level:
        logs.configure(log_level(after.config, runtime.env, serve=runtime.serve))
