"""A server of phone calls in a runtime with a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from lemon_core.boot import boot
from lemon_core.http.listen import listen
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime
from lemon_core.single_errors import single_errors
from lemon_core.testing import FakeClock, scrubbed_environ, temp_home
from lemon_gateway.ingress_server import serving_routes
from lemon_gateway.tests.voice_servers import Phone, Services, running_services
from lemon_gateway.voice.keys import VoiceKeys, models_of, services_of
from lemon_gateway.voice.surface import surface

AUTH_TOKEN = "auth-token-of-tests"
KEYS: Mapping[str, object] = {
    "twilio_account_sid": "ACtests",
    "twilio_auth_token": AUTH_TOKEN,
    "deepgram_api_key": "deepgram-key",
    "elevenlabs_api_key": "elevenlabs-key",
    "welcome_message": "Hello there",
}


@dataclass(frozen=True, slots=True)
class Line:
    """Everything of a test with calls."""

    services: Services
    phone: Phone
    clock: FakeClock
    runtime: Runtime


@asynccontextmanager
async def runtime_with(
    section: Mapping[str, object],
    clock: FakeClock,
    paths: PathSettings,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Runtime]:
    """A runtime without any component whose `[gateway.voice]` is `section`."""
    async with boot(
        Profile("test"),
        cwd=paths.home,
        environ=scrubbed_environ(paths.home, environ),
        paths=paths,
        clock=clock,
        overrides={"gateway": {"voice": section}},
    ) as runtime:
        yield runtime


@asynccontextmanager
async def phone_line(
    section: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Line]:
    """Services, a server of calls that uses them, and a phone that can call it."""
    clock = FakeClock()
    keys = {"OPENAI_API_KEY": "openai-key", **(environ or {})}
    with temp_home() as paths:
        async with (
            running_services() as services,
            runtime_with({**KEYS, **(section or {})}, clock, paths, keys) as runtime,
        ):
            way_in = await surface(runtime, services.endpoints)
            listener = listen("127.0.0.1", 0, "port")
            async with (
                way_in.opened() as routes,
                serving_routes("voice", routes, listener, way_in.limits) as port,
            ):
                phone = Phone(f"http://127.0.0.1:{port}", AUTH_TOKEN)
                yield Line(services, phone, clock, runtime)


@asynccontextmanager
async def keys_of(
    section: Mapping[str, object], clock: FakeClock, environ: Mapping[str, str] | None = None
) -> AsyncIterator[VoiceKeys]:
    """The keys that calls find with `section` and, for models, `environ`."""
    with temp_home() as paths:
        async with runtime_with(section, clock, paths, environ) as runtime:
            services = services_of(runtime.config.gateway.voice)
            models = models_of(runtime.config)
            yield VoiceKeys(runtime.secrets, runtime.environ, services, models)


@asynccontextmanager
async def time_passing(clock: FakeClock, step_ms: int = 50) -> AsyncIterator[None]:
    """The clock runs on by itself, faster than any clock, for as long as the block waits."""

    async def run() -> None:
        while True:
            await clock.advance(step_ms)

    with single_errors():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            yield
            tasks.cancel_scope.cancel()
