"""A call reaches the built server with the keys that the command stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlencode
from xml.etree import ElementTree

import aiohttp
import anyio
import pytest

from lemon_gateway.twilio_signature import SIGNATURE_HEADER, signature
from tools.e2e.tests.stack import LEMON, Home, user

pytestmark = pytest.mark.anyio

PATH = "/webhooks/twilio/voice"
PUBLIC = "https://voice.example.com:8443/phone"
TOKEN = "twilio-token"
CONFIG = f"""
[gateway]
gateway_ingress_enabled = true

[gateway.voice]
enabled = true
websocket_port = 0
public_url = "{PUBLIC}"
"""
FORM = (("CallSid", "CA0123"), ("From", "+15552223333"), ("To", "+15550001111"))


async def call(address: str, *, token: str = TOKEN) -> tuple[int, str]:
    """Tell the server of a call as Twilio does; status and body of the answer."""
    headers = {
        SIGNATURE_HEADER: signature(token, PUBLIC + PATH, FORM),
        "content-type": "application/x-www-form-urlencoded",
    }
    async with (
        aiohttp.ClientSession() as http,
        http.post(address + PATH, data=urlencode(FORM), headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def closed_with(address: str, parameters: Mapping[str, str], *frames: str) -> int | None:
    """Open a media stream, send its first frames, and see how the server closes it."""
    start = {"streamSid": "MZ0123", "callSid": "CA0123", "customParameters": parameters}
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{address.replace('http', 'ws', 1)}{PATH}/stream") as socket,
    ):
        await socket.send_json({"event": "start", "start": start, "streamSid": "MZ0123"})
        for frame in frames:
            await socket.send_str(frame)
        async for _ in socket:
            pass
        return socket.close_code


async def stored(home: Home) -> str:
    """Store Twilio's token alone: without the other keys no other machine is asked for anything."""
    command = f"printf '\\n%s\\n' {TOKEN} | '{LEMON}' voice secrets"
    async with home.start("sh", "-c", command) as program:
        ended = await program.wait()
    assert ended.code == 0, ended
    return ended.out


async def test_a_call_is_let_in_by_the_stored_token_and_its_stream_once() -> None:
    """Through the real server: forged requests and streams are refused, a signed call is taken."""
    async with user() as home:
        config = anyio.Path(home.paths.config_file)
        await config.parent.mkdir(mode=0o700, exist_ok=True)
        await config.write_text(CONFIG)
        assert (await home.lemon("secrets", "init")).code == 0
        assert await stored(home) == "Stored 1 of 4 secrets."
        async with home.server() as server:
            address = (await server.wait_for("  voice ")).split()[-1]
            assert (await call(address, token="forged"))[0] == 401
            status, twiml = await call(address)
            assert status == 200
            stream = ElementTree.fromstring(twiml).find("./Connect/Stream")
            assert stream is not None
            assert stream.attrib["url"] == f"wss://voice.example.com:8443/phone{PATH}/stream"
            parameters = {each.attrib["name"]: each.attrib["value"] for each in stream}
            assert await closed_with(address, {**parameters, "token": "guessed"}) == 1008
            hang_up = json.dumps({"event": "stop", "stop": {"callSid": "CA0123"}})
            assert await closed_with(address, parameters, hang_up) == 1000
            assert await closed_with(address, parameters) == 1008
            told = (await home.lemon("doctor", "-v")).out
            (line,) = [line for line in told.splitlines() if "gateway.voice" in line]
            assert "there is no deepgram_api_key" in line
