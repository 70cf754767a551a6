"""Deliveries over HTTP, and the surface in a real runtime (specification lemon_gateway 7, 12)."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import aiohttp
import anyio
import pytest

from lemon_core.boot import BootError
from lemon_core.paths import PathSettings
from lemon_core.runtime import Runtime
from lemon_core.testing import temp_home
from lemon_gateway.sms.endpoint import BODY_BYTES, PATH
from lemon_gateway.sms.records import TABLE
from lemon_gateway.sms.security import SmsSecurity
from lemon_gateway.tests.booting import booted
from lemon_gateway.tests.fakes import SESSION, context
from lemon_gateway.tests.sms_rig import NUMBER, delivery
from lemon_gateway.tools import GatewayTools
from lemon_gateway.twilio_signature import (
    SETTINGS_HEADER,
    SIGNATURE_HEADER,
    Arrival,
    Fields,
    signature,
)

pytestmark = pytest.mark.anyio

TOKEN = "twilio-token"
PUBLIC = "https://sms.example.com:8443/hooks/in"
SMS = ["sms_get_inbox_number", "sms_wait_for_code", "sms_list_messages", "sms_claim_message"]


@asynccontextmanager
async def serving(
    section: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    paths: PathSettings | None = None,
    ingress: bool = True,
) -> AsyncIterator[tuple[Runtime, str]]:
    """A server whose inbox is on; its runtime, and the address of the endpoint."""
    sms = {"webhook_enabled": True, "webhook_port": 0, "inbox_number": NUMBER, **(section or {})}
    gateway = {"health_enabled": False, "gateway_ingress_enabled": ingress, "sms": sms}
    with temp_home() as home, anyio.fail_after(20):
        async with booted(paths or home, gateway, environ=environ) as (runtime, _):
            yield runtime, f"{runtime.listening.get('sms', '')}{PATH}"


async def post(
    url: str,
    fields: Fields,
    *,
    signed_for: str | None = None,
    token: str = TOKEN,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    """Status, content type and body of the answer to a delivery."""
    sent = dict(headers or {})
    if signed_for is not None:
        sent[SIGNATURE_HEADER] = signature(token, signed_for, fields)
    form = {"content-type": "application/x-www-form-urlencoded", **sent}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=urlencode(fields).encode(), headers=form) as answer,
    ):
        return answer.status, answer.content_type, await answer.text()


async def sids(runtime: Runtime) -> list[object]:
    return [key for key, _ in await runtime.store.load_all(TABLE)]


@pytest.mark.behaviour("lemon_gateway.31")
async def test_a_signed_delivery_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    """And answered with nothing to send back; neither text nor numbers stand in the log."""
    caplog.set_level(logging.DEBUG)
    async with serving({"auth_token": TOKEN}) as (runtime, url):
        fields = delivery("SM1", "your code is 918273")
        answer = await post(url, fields, signed_for=url)
        assert answer == (200, "application/xml", "<Response></Response>")
        assert await post(url, fields, signed_for=url) == answer
        assert await post(url, [("Body", "1234")], signed_for=url) == answer
        assert await sids(runtime) == ["SM1"]
    logged = "\n".join(record.getMessage() + str(vars(record)) for record in caplog.records)
    assert "sms.received" in logged
    assert not any(secret in logged for secret in ("918273", "2223333", TOKEN))


@pytest.mark.behaviour("lemon_gateway.31")
async def test_what_is_not_signed_is_refused() -> None:
    """Whatever is wrong with it, and everything without a token; other paths are not there."""
    fields = delivery("SM1", "code 1111")
    async with serving({"auth_token": TOKEN}) as (runtime, url):
        assert (await post(url, fields))[0] == 401
        assert (await post(url, fields, signed_for=url, token="other"))[0] == 401
        assert (await post(url, fields, signed_for=f"{url}?a=1"))[0] == 401
        too_many = [(f"Field{number}", "1") for number in range(1_001)]
        assert (await post(url, too_many, signed_for=url))[0] == 401
        shared = {SETTINGS_HEADER: "key=k,algorithm=HMAC_SHA256"}
        assert (await post(url, fields, signed_for=url, headers=shared))[0] == 401
        assert (await post(f"{url}/", fields, signed_for=f"{url}/"))[0] == 404
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 404
        big = [*fields, ("Pad", "x" * BODY_BYTES)]
        assert (await post(url, big, signed_for=url))[0] == 413
        assert await sids(runtime) == []
    async with serving() as (runtime, url):
        assert (await post(url, fields, signed_for=url, token=""))[0] == 401
        assert any("TWILIO_AUTH_TOKEN" in text for text in runtime.warnings)


@pytest.mark.behaviour("lemon_gateway.31")
async def test_behind_a_proxy_on_this_machine_its_words_count() -> None:
    """The address is rebuilt from them; the query is signed too."""
    forwarded = {"x-forwarded-proto": "https", "x-forwarded-host": "sms.example.com"}
    async with serving({"auth_token": TOKEN}) as (runtime, url):
        public = f"https://sms.example.com{PATH}?tenant=a%20b"
        fields = delivery("SM1", "code 1111")
        there = f"{url}?tenant=a%20b"
        assert (await post(there, fields, signed_for=public, headers=forwarded))[0] == 200
        assert (await post(there, fields, signed_for=public))[0] == 401
        assert await sids(runtime) == ["SM1"]


@pytest.mark.behaviour("lemon_gateway.107")
async def test_the_configured_address_counts_whatever_the_proxy_calls() -> None:
    """With its port or without; repeated and empty fields are signed like all others."""
    fields = [*delivery("SM1", "code 1111"), ("Media", "b"), ("Media", "a"), ("Media", "b")]
    fields.append(("Empty", ""))
    async with serving({"auth_token": TOKEN, "webhook_url": PUBLIC}) as (runtime, url):
        for signed_for in (PUBLIC, PUBLIC.replace(":8443", "")):
            assert (await post(url, fields, signed_for=signed_for))[0] == 200
        assert (await post(url, fields, signed_for=url))[0] == 401
        assert await sids(runtime) == ["SM1"]


@pytest.mark.behaviour("lemon_gateway.107")
async def test_no_switch_opens_the_inbox_to_strangers() -> None:
    """Without signatures only this machine may deliver, and nothing that came through a proxy."""
    fields = delivery("SM1", "code 1111")
    async with serving({"auth_token": TOKEN, "validate_webhook": False}) as (runtime, url):
        assert any("validate_webhook is off" in text for text in runtime.warnings)
        proxied = {"x-forwarded-for": "203.0.113.9"}
        assert (await post(url, fields, headers=proxied))[0] == 401
        # A page in a browser of this machine can post a form here, too.
        for sent_by_a_browser in ({"origin": "https://x.example"}, {"sec-fetch-site": "none"}):
            assert (await post(url, fields, headers=sent_by_a_browser))[0] == 401
        assert (await post(url, fields))[0] == 200
        assert await sids(runtime) == ["SM1"]
    off = SmsSecurity(TOKEN, None, validate=False)
    assert off.refusal_of(Arrival(PATH, "", "203.0.113.9", {}), fields) == "not_local"
    for section in ({"auth_token": TOKEN, "validate_webhook": False}, {}):
        with pytest.raises(BootError, match=r"\[gateway.sms\] webhook_bind = '0.0.0.0'"):
            async with serving({**section, "webhook_bind": "any"}):
                pass


async def test_variables_beat_the_file_and_secrets_beat_both() -> None:
    """The secret that is named, the usual one, then the value."""
    fields = delivery("SM1", "code 1111")
    environ = {
        "TWILIO_AUTH_TOKEN": "of-variable",
        "TWILIO_WEBHOOK_URL": PUBLIC,
        "LEMON_SECRETS_MASTER_KEY": base64.b64encode(bytes(32)).decode(),
    }
    with temp_home() as paths:
        paths.state_dir.mkdir(mode=0o700, exist_ok=True)
        written = '[gateway.sms]\nauth_token = "of-file"\nwebhook_url = "https://of.file/"\n'
        paths.config_file.write_text(written)
        async with serving(paths=paths) as (_, url):
            status = await post(url, fields, signed_for="https://of.file/", token="of-file")
            assert status[0] == 200
        async with serving({}, environ, paths=paths) as (runtime, url):
            assert (await post(url, fields, signed_for=PUBLIC, token="of-file"))[0] == 401
            assert (await post(url, fields, signed_for=PUBLIC, token="of-variable"))[0] == 200
            await runtime.secrets.set("TWILIO_AUTH_TOKEN", "usual")
            await runtime.secrets.set("SMS_TOKEN", "named")
        async with serving({}, environ, paths=paths) as (_, url):
            assert (await post(url, fields, signed_for=PUBLIC, token="of-variable"))[0] == 401
            assert (await post(url, fields, signed_for=PUBLIC, token="usual"))[0] == 200
        named = {"auth_token_secret": "SMS_TOKEN"}
        async with serving(named, environ, paths=paths) as (_, url):
            assert (await post(url, fields, signed_for=PUBLIC, token="usual"))[0] == 401
            assert (await post(url, fields, signed_for=PUBLIC, token="named"))[0] == 200


@pytest.mark.behaviour("lemon_gateway.37")
async def test_every_session_has_the_tools_while_the_inbox_is_on() -> None:
    """They are external; without the inbox, or without ingress, they are not there."""
    async with serving({"auth_token": TOKEN}) as (runtime, _):
        tools = runtime.service(GatewayTools.of)
        for session_key in (SESSION, "agent:b:telegram:c:1"):
            offered = tools.for_session(session_key, context("run_1", session_key))
            assert [tool.name for tool in offered] == SMS
        assert {runtime.tool_classes.classes(name) for name in SMS} == {frozenset({"external"})}
    assert tools.for_session(SESSION, context("run_1")) == []
    async with serving({"webhook_enabled": False}) as (runtime, url):
        assert url == PATH
        assert runtime.service(GatewayTools.of).for_session(SESSION, context("run_1")) == []
    async with serving({"auth_token": TOKEN}, ingress=False) as (runtime, url):
        assert url == PATH
        assert runtime.service(GatewayTools.of).for_session(SESSION, context("run_1")) == []
        assert any("gateway.sms.webhook_enabled" in text for text in runtime.warnings)


async def test_a_store_that_fails_is_no_answer_to_twilio(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not deliver again; the log has the failure, without the message."""
    async with serving({"auth_token": TOKEN}) as (runtime, url):

        async def broken(*_: object) -> bool:
            raise RuntimeError("the disk is gone")

        monkeypatch.setattr(runtime.store, "put_new", broken)
        fields = delivery("SM1", "code 918273")
        assert (await post(url, fields, signed_for=url))[0] == 200
        monkeypatch.undo()
        assert await sids(runtime) == []
    assert "sms.ingest_failed" in caplog.text
    assert "918273" not in caplog.text
