"""`lemon doctor` about phone calls: the issue asks for reachable, signed and safe."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import anyio
import pytest

from lemon_core.boot import boot
from lemon_core.doctor.context import DoctorContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.testing import scrubbed_environ, temp_home
from lemon_gateway.doctor import CHECKS, voice
from lemon_gateway.tests.doctoring import doctor_view

GOOD: Mapping[str, object] = {
    "enabled": True,
    "websocket_port": 0,
    "twilio_account_sid": "AC0",
    "twilio_auth_token": "token",
    "deepgram_api_key": "key",
    "elevenlabs_api_key": "key",
}
MODEL = {"OPENAI_API_KEY": "key"}
MASTER = {"LEMON_SECRETS_MASTER_KEY": base64.b64encode(bytes(32)).decode()}


def context(
    paths: PathSettings,
    row: Mapping[str, object],
    environ: Mapping[str, str] = MODEL,
    *,
    ingress: bool = True,
) -> DoctorContext:
    given = {key: value for key, value in row.items() if value is not None}
    gateway = {"gateway_ingress_enabled": ingress, "voice": given}
    return doctor_view(paths, gateway, environ)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"enabled": None}, "skip", "gateway.voice.enabled is off"),
        ({}, "pass", "chooses a port"),
        ({"bind": "any"}, "pass", "chooses a port"),
        ({"twilio_auth_token": None}, "fail", "no Twilio token"),
        ({"twilio_auth_token": None, "bind": "any"}, "fail", "open to everybody"),
        ({"validate_webhook": False, "bind": "any"}, "fail", "open to everybody"),
        ({"deepgram_api_key": None}, "fail", "no deepgram_api_key"),
        ({"elevenlabs_api_key": None}, "fail", "no elevenlabs_api_key"),
        ({"elevenlabs_output_format": "mp3_44100_128"}, "fail", "nothing is spoken"),
        ({"elevenlabs_output_format": "pcm_16000"}, "pass", "chooses a port"),
        ({"llm_model": "llama-3"}, "fail", "llama-3"),
        ({"llm_model": "claude-haiku-4-5"}, "fail", "no key for claude-haiku-4-5"),
        ({"validate_webhook": False}, "warn", "signatures are not checked"),
        ({"public_url": "http://lemon.example"}, "warn", "clear text"),
        ({"public_url": "https://lemon.example"}, "pass", "chooses a port"),
        ({"twilio_account_sid": None}, "warn", "no call is recorded"),
    ],
)
async def test_what_is_configured_is_judged(
    change: Mapping[str, object], status: str, words: str
) -> None:
    """The worst of it, with what to do."""
    assert voice in [check.look for check in CHECKS]
    with temp_home() as paths, anyio.fail_after(5):
        found = await voice(context(paths, {**GOOD, **change}))
    assert (found.status, words in found.message) == (status, True), found
    assert (found.remediation is None) == (status in ("pass", "skip"))


async def test_without_ingress_it_does_nothing() -> None:
    """And says so."""
    with temp_home() as paths, anyio.fail_after(5):
        found = await voice(context(paths, GOOD, ingress=False))
    assert (found.status, "does nothing" in found.message) == ("warn", True)


async def test_keys_may_be_variables_or_secrets() -> None:
    """Whose values are not needed to know that they are there."""
    bare = {"enabled": True, "websocket_port": 0}
    names = ("TWILIO_ACCOUNT_SID", "TWILIO_AUTH_TOKEN", "DEEPGRAM_API_KEY", "ELEVENLABS_API_KEY")
    with temp_home() as paths, anyio.fail_after(10):
        variables = {**MODEL, **dict.fromkeys(names, "set")}
        assert (await voice(context(paths, bare, variables))).status == "pass"
        async with boot(
            Profile("test"),
            cwd=paths.home,
            environ=scrubbed_environ(paths.home, MASTER),
            paths=paths,
        ) as runtime:
            for name in (*names[:3], "my_elevenlabs", "llm_openai_api_key"):
                await runtime.secrets.set(name.lower(), "stored")
        missing = await voice(context(paths, bare, {}))
        assert "no elevenlabs_api_key" in missing.message
        named = {**bare, "elevenlabs_api_key_secret": "my_elevenlabs"}
        assert (await voice(context(paths, named, {}))).status == "pass"
