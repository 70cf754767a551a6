"""Where a call's keys come from, and in which order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from lemon_core.boot import boot
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime
from lemon_core.testing import FakeClock, scrubbed_environ, temp_home
from lemon_gateway.voice.keys import ModelKey, ModelRow, VoiceKeys, Written

MASTER = {"LEMON_SECRETS_MASTER_KEY": "bWFzdGVyLWtleS1vZi10ZXN0cy0zMi1ieXRlcyEhISE="}


@asynccontextmanager
async def booted(environ: Mapping[str, str] | None = None) -> AsyncIterator[Runtime]:
    with temp_home() as paths:
        async with boot(
            Profile("test"),
            cwd=paths.home,
            environ=scrubbed_environ(paths.home, {**MASTER, **(environ or {})}),
            paths=paths,
            clock=FakeClock(),
        ) as runtime:
            yield runtime


async def test_a_services_key_is_looked_for_in_the_order_of_the_specification() -> None:
    """Specification lemon_gateway 12: named secret, usual secret, plain value, environment."""
    async with booted({"DEEPGRAM_API_KEY": "variable"}) as runtime:
        written = Written("my_deepgram", "plain")
        keys = VoiceKeys(runtime.secrets, runtime.environ, {"deepgram_api_key": written})
        bare = VoiceKeys(runtime.secrets, runtime.environ)
        assert await bare.service("deepgram_api_key") == "variable"
        assert await keys.service("deepgram_api_key") == "plain"
        await runtime.secrets.set("deepgram_api_key", "usual")
        assert await keys.service("deepgram_api_key") == "usual"
        await runtime.secrets.set("my_deepgram", "named")
        assert await keys.service("deepgram_api_key") == "named"
        assert await keys.service("elevenlabs_api_key") is None


async def test_a_secret_that_cannot_be_read_is_no_key() -> None:
    """The call tells that it has no key; the log tells why."""
    async with booted() as runtime:
        await runtime.secrets.set("elevenlabs_api_key", "value")
        runtime.environ["LEMON_SECRETS_MASTER_KEY"] = ""
        keys = VoiceKeys(runtime.secrets, runtime.environ)
        runtime.secrets.keys = type(runtime.secrets.keys)(())
        assert await keys.service("elevenlabs_api_key") is None


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_models_key_comes_from_environment_configuration_or_secrets(provider: str) -> None:
    """Specification lemon_gateway 8: environment, then config, then secrets."""
    name = f"{provider.upper()}_API_KEY"
    async with booted() as runtime:
        environ: dict[str, str] = {}
        bare = VoiceKeys(runtime.secrets, environ)
        assert await bare.model(provider) is None
        await runtime.secrets.set(name, "stored")
        assert await bare.model(provider) == ModelKey("stored", None)
        row = ModelRow("http://models.example/v1", "written", None)
        keys = VoiceKeys(runtime.secrets, environ, models={provider: row})
        assert await keys.model(provider) == ModelKey("written", "http://models.example/v1")
        environ[name] = "variable"
        assert await keys.model(provider) == ModelKey("variable", None)
        environ[f"{provider.upper()}_BASE_URL"] = "http://other.example"
        assert await keys.model(provider) == ModelKey("variable", "http://other.example")


async def test_a_models_secret_may_have_a_name_of_its_own() -> None:
    """The row's own secret is the first of the secrets."""
    async with booted() as runtime:
        await runtime.secrets.set("llm_openai_api_key", "of the provider")
        await runtime.secrets.set("my_openai", "named")
        row = ModelRow(None, None, "my_openai")
        keys = VoiceKeys(runtime.secrets, {}, models={"openai": row})
        assert await keys.model("openai") == ModelKey("named", None)
        assert await VoiceKeys(runtime.secrets, {}).model("openai") == ModelKey(
            "of the provider", None
        )


def test_no_key_stands_in_a_traceback() -> None:
    """What is shown of these objects holds no value."""
    texts = repr((Written("name", "sesame"), ModelRow(None, "sesame"), ModelKey("sesame", None)))
    assert "sesame" not in texts
