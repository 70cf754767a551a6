"""A code that Twilio delivers reaches the run that waits for it."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import aiohttp
import anyio
import pytest

from lemon_gateway.twilio_signature import SIGNATURE_HEADER, signature
from tools.e2e.tests.stack import LEMON, Home, model_server, scripted, user

pytestmark = pytest.mark.anyio

PATH = "/webhooks/twilio/sms"
PUBLIC = "https://sms.example.com:8443/in"
TOKEN = "twilio-token"
NUMBER = "+15550001111"
CONFIG = f"""
[gateway]
gateway_ingress_enabled = true

[gateway.sms]
webhook_enabled = true
webhook_port = 0
inbox_number = "{NUMBER}"
webhook_url = "{PUBLIC}"
"""
WAIT = {"tool_calls": [{"name": "sms_wait_for_code", "arguments": {"timeout_ms": 60_000}}]}


async def configured(home: Home, base_url: str) -> Home:
    """The user with an inbox; its token comes from a variable."""
    config = anyio.Path(home.paths.config_file)
    await config.parent.mkdir(mode=0o700, exist_ok=True)
    await config.write_text(CONFIG)
    me = scripted(home, base_url)
    return Home(me.paths, {**me.environ, "TWILIO_AUTH_TOKEN": TOKEN})


async def deliver(url: str, sid: str, body: str, *, token: str = TOKEN) -> int:
    """Post a message as Twilio does; the status of the answer."""
    form = (("MessageSid", sid), ("From", "+15552223333"), ("To", NUMBER), ("Body", body))
    headers = {
        SIGNATURE_HEADER: signature(token, PUBLIC, form),
        "content-type": "application/x-www-form-urlencoded",
    }
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=urlencode(form).encode(), headers=headers) as answer,
    ):
        return answer.status


async def requests(base_url: str) -> Sequence[Mapping[str, object]]:
    """What the model was asked."""
    url = base_url.removesuffix("/v1") + "/control/requests"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        found: Sequence[Mapping[str, object]] = await answer.json()
        return found


async def test_a_run_gets_the_code_it_waits_for() -> None:
    """Through the real server: a forged delivery is refused, the signed one is the tool's answer.
    What is stored outlives a process that is killed: the code nobody has had, and the claim."""
    async with user() as home:
        mine = {"tool_calls": [{"name": "sms_list_messages", "arguments": {"only_mine": True}}]}
        script = {"turns": [WAIT, {"text": "Got it."}, WAIT, mine, {"text": "Still there."}]}
        async with model_server(script, home.paths.home) as base_url:
            me = await configured(home, base_url)
            async with me.server() as server:
                url = (await server.wait_for("  sms ")).split()[-1] + PATH
                async with me.start(LEMON, "run", "--session", "w", "sign in") as run:
                    await run.wait_for("sms_wait_for_code")
                    assert await deliver(url, "SM1", "code 111111", token="forged") == 401
                    assert await deliver(url, "SM1", "Your code is 918273.") == 200
                    ended = await run.wait()
                    assert (ended.code, ended.out) == (0, "Got it.")
                asked = json.dumps((await requests(base_url))[-1])
                assert "code: 918273" in asked
                assert "111111" not in asked
                assert await deliver(url, "SM2", "Your code is 445566.") == 200
                server.signal(signal.SIGKILL)
                await server.wait()
            async with me.server():
                ended = await me.lemon("run", "--session", "w", "again")
                assert (ended.code, ended.out) == (0, "Still there.")
            second, listed = map(json.dumps, (await requests(base_url))[-2:])
            assert "code: 445566" in second
            assert "sid SM1, claimed" in listed
