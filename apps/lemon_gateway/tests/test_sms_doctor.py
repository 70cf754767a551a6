"""`lemon doctor` about the SMS inbox: the issue asks for reachable, signed and safe."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import anyio
import pytest

from lemon_core.doctor.context import DoctorContext
from lemon_core.paths import PathSettings
from lemon_core.testing import temp_home
from lemon_gateway.doctor import CHECKS, sms
from lemon_gateway.tests.booting import booted
from lemon_gateway.tests.doctoring import doctor_view

pytestmark = pytest.mark.anyio

GOOD = {
    "webhook_enabled": True,
    "webhook_port": 0,
    "auth_token": "a token",
    "inbox_number": "+15550001111",
    "webhook_url": "https://sms.example.com/in",
}


def context(
    paths: PathSettings,
    row: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
    *,
    ingress: bool = True,
) -> DoctorContext:
    gateway = {"gateway_ingress_enabled": ingress, "sms": dict(row)}
    return doctor_view(paths, gateway, environ)


@pytest.mark.parametrize(
    ("row", "status", "words"),
    [
        ({}, "skip", "gateway.sms.webhook_enabled is off"),
        (GOOD, "pass", "chooses a port"),
        ({**GOOD, "auth_token": None}, "fail", "no Twilio token"),
        ({**GOOD, "auth_token": None, "webhook_bind": "any"}, "fail", "open to everybody"),
        ({**GOOD, "validate_webhook": False, "webhook_bind": "any"}, "fail", "open to everybody"),
        ({**GOOD, "webhook_bind": "any"}, "pass", "chooses a port"),
        ({**GOOD, "validate_webhook": False}, "warn", "signatures are not checked"),
        ({**GOOD, "webhook_url": "http://sms.example.com/in"}, "warn", "clear text"),
        ({**GOOD, "webhook_url": "https://sms.example.com"}, "warn", "has no path"),
        ({**GOOD, "inbox_number": None}, "warn", "no inbox_number"),
    ],
)
async def test_what_is_configured_is_judged(
    row: Mapping[str, object], status: str, words: str
) -> None:
    """The worst of it, with what to do."""
    assert sms in [check.look for check in CHECKS]
    given = {key: value for key, value in row.items() if value is not None}
    with temp_home() as paths, anyio.fail_after(5):
        found = await sms(context(paths, given))
    assert (found.status, words in found.message) == (status, True), found
    assert (found.remediation is None) == (status in ("pass", "skip"))


async def test_a_token_may_be_a_variable_or_a_secret() -> None:
    """Whose value is not needed to know that it is there."""
    bare = {key: value for key, value in GOOD.items() if key != "auth_token"}
    named = {**bare, "auth_token_secret": "SMS_TOKEN"}
    with temp_home() as paths, anyio.fail_after(10):
        assert (await sms(context(paths, bare))).status == "fail"
        for name, row in (("TWILIO_AUTH_TOKEN", bare), ("SMS_TOKEN", named)):
            assert (await sms(context(paths, row, {name: "t"}))).status == "pass"
        key = {"LEMON_SECRETS_MASTER_KEY": base64.b64encode(bytes(32)).decode()}
        async with booted(paths, {"health_enabled": False}, environ=key) as (runtime, _):
            await runtime.secrets.set("SMS_TOKEN", "t")
        assert (await sms(context(paths, bare))).status == "fail"
        assert (await sms(context(paths, named))).status == "pass"


async def test_without_ingress_it_does_nothing() -> None:
    """And says so."""
    with temp_home() as paths, anyio.fail_after(5):
        found = await sms(context(paths, GOOD, ingress=False))
    assert (found.status, "does nothing" in found.message) == ("warn", True)
