"""The models of a runtime: what is taken out of it, and how it is kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lemon_agent.runtime.credentials import OAuthResolver, Persist
from lemon_agent.runtime.model_runtime import ModelRuntime
from lemon_agent.runtime.names import NAMES
from lemon_agent.runtime.settings import ModelSettings
from lemon_ai import Client
from lemon_ai.admission import Admission, Limits
from lemon_ai.client import default_limits
from lemon_ai.providers import PROVIDERS
from lemon_ai.telemetry import Telemetry
from lemon_ai.transport import Transport
from lemon_core.clock import Clock
from lemon_core.config.project import read_project
from lemon_core.paths import PathSettings

if TYPE_CHECKING:
    from lemon_core.config.model import LemonConfig
    from lemon_core.runtime import Runtime

MIN_CALLS: Final = 10


def model_runtime(runtime: Runtime) -> ModelRuntime:
    """The models of a runtime: `runtime.service(model_runtime)`; the component closes them."""
    runs = runtime.config.gateway.max_concurrent_runs
    telemetry = Telemetry()
    telemetry.subscribe(runtime.telemetry.emit)
    admission = Admission(limits_of=lambda name: limits_for(name, runs), emit=telemetry.emit)
    env = without_keys(runtime.environ)
    transport = Transport(env=env)
    return ModelRuntime(
        settings=live_settings(runtime),
        secrets=runtime.secrets,
        oauth=oauth_resolver(transport, runtime.clock),
        client=Client(env=env, transport=transport, admission=admission, telemetry=telemetry),
        clock=runtime.clock,
    )


def oauth_resolver(transport: Transport, clock: Clock) -> OAuthResolver:
    """lemon_ai's resolver, made when the first OAuth payload is met."""
    made: OAuthResolver | None = None

    async def resolve(name: str, value: str, persist: Persist) -> str | None:
        nonlocal made
        if made is None:
            from lemon_ai.oauth import OAuthClient
            from lemon_ai.oauth_providers import OAUTH_PROVIDERS
            from lemon_ai.oauth_secrets import OAuthSecrets

            clients = {
                row.id: OAuthClient(row, transport, clock_ms=clock.now_ms)
                for row in OAUTH_PROVIDERS.values()
            }
            made = OAuthSecrets(clients).resolve_secret
        return await made(name, value, persist)

    return resolve


def limits_for(name: str, max_concurrent_runs: int) -> Limits:
    """lemon_ai's limits, wide enough for every run that the gateway lets in, subagents included."""
    limits = default_limits(name)
    if limits.concurrency is None:
        return limits
    calls = max(MIN_CALLS, 2 * max_concurrent_runs)
    return replace(
        limits,
        concurrency=calls,
        rate=max(limits.rate or 0.0, float(calls)),
        burst=max(limits.burst, 2 * calls),
    )


def without_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the vendors' keys.

    Which key goes with a call is decided here: what is left out on purpose (`auth_source`, a URL
    from a project's file) must not come back by the client's own look into the environment.
    """
    keys = {name for row in PROVIDERS.values() for name in row.key_variables}
    keys |= {name for row in NAMES.values() for name in row.variables}
    return {name: value for name, value in environ.items() if name not in keys}


def live_settings(runtime: Runtime) -> Callable[[], ModelSettings]:
    """The settings as the runtime's configuration has them now; one object until it changes."""
    seen: tuple[LemonConfig, ModelSettings] | None = None

    def settings() -> ModelSettings:
        nonlocal seen
        config = runtime.config
        if seen is None or seen[0] is not config:
            foreign = foreign_urls(config, runtime.cwd, runtime.paths, runtime.environ)
            seen = (config, settings_of(config, runtime.environ, foreign))
        return seen[1]

    return settings


def settings_of(
    config: LemonConfig, environ: Mapping[str, str], foreign: Mapping[str, str]
) -> ModelSettings:
    """What a configuration says of the models."""
    return ModelSettings(
        config.defaults, config.providers, config.runtime.provider_routing, environ, foreign
    )


def foreign_urls(
    config: LemonConfig, cwd: Path, paths: PathSettings, environ: Mapping[str, str]
) -> Mapping[str, str]:
    """The base URLs that the file of the project in `cwd` sets and the environment does not."""
    if not any(row.base_url for row in config.providers.values()):
        return {}
    project = read_project(cwd, paths)
    rows = None if project is None else project.file.data.get("providers")
    if not isinstance(rows, Mapping):
        return {}
    urls = {
        str(name): row.get("base_url") for name, row in rows.items() if isinstance(row, Mapping)
    }
    return {
        name: url
        for name, url in urls.items()
        if isinstance(url, str) and environ.get(f"{name.upper().replace('-', '_')}_BASE_URL") != url
    }
