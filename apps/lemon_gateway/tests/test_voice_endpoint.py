"""The routes of phone calls on a real server: signatures, proxies, TwiML, recordings, socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import aiohttp
import anyio
import pytest

from lemon_core.http.listen import listen
from lemon_core.testing import FakeClock, temp_home
from lemon_gateway.ingress import UnprotectedBind
from lemon_gateway.ingress_limits import Limits
from lemon_gateway.ingress_server import serving_routes
from lemon_gateway.tests.booting import booted
from lemon_gateway.tests.fakes import settle
from lemon_gateway.tests.voice_calls import AUTH_TOKEN, KEYS, phone_line, runtime_with
from lemon_gateway.tests.voice_parts import Parts
from lemon_gateway.tests.voice_servers import (
    CALL_SID,
    CALLEE,
    CALLER,
    PATH,
    Phone,
    read_twiml,
    sound_of,
)
from lemon_gateway.twilio_signature import signature
from lemon_gateway.voice.calls import Calls
from lemon_gateway.voice.endpoint import VoiceEndpoint, stream_url, twiml
from lemon_gateway.voice.recordings import Recording
from lemon_gateway.voice.security import VoiceSecurity
from lemon_gateway.voice.state import CallLimits
from lemon_gateway.voice.stream import MediaStreams
from lemon_gateway.voice.surface import keep_recordings, surface

FORM = {"CallSid": CALL_SID, "From": CALLER, "To": CALLEE}


async def test_a_call_is_connected_to_a_stream_that_knows_what_it_is() -> None:
    """Specification lemon_gateway 8: TwiML with parameters, never a query."""
    async with phone_line() as line:
        status, body = await line.phone.post(PATH, FORM)
        assert status == 200
        connect = read_twiml(body)
        where = line.phone.base_url.removeprefix("http://")
        assert connect.url == f"ws://{where}{PATH}/stream"
        assert {**connect.parameters, "token": ""} == {
            "callSid": CALL_SID,
            "from": CALLER,
            "to": CALLEE,
            "token": "",
        }
        assert len(connect.parameters["token"]) >= 32
        again = read_twiml((await line.phone.post(PATH, FORM))[1])
        assert again.parameters["token"] != connect.parameters["token"]


async def test_the_number_that_is_called_is_the_configured_one_where_nobody_says() -> None:
    """Specification lemon_gateway 12: `twilio_phone_number`."""
    async with phone_line({"twilio_phone_number": CALLEE}) as line:
        body = (await line.phone.post(PATH, {"CallSid": CALL_SID, "From": CALLER}))[1]
        assert read_twiml(body).parameters["to"] == CALLEE


async def test_behind_a_proxy_the_stream_goes_to_the_public_host_encrypted() -> None:
    """Specification lemon_gateway 8: `X-Forwarded-Host`; `wss` when the proto is https."""
    async with phone_line() as line:
        headers = {"x-forwarded-host": "lemon.example", "x-forwarded-proto": "https"}
        status, body = await line.phone.post(
            PATH, FORM, headers=headers, signed_for=f"https://lemon.example{PATH}"
        )
        assert status == 200
        assert read_twiml(body).url == f"wss://lemon.example{PATH}/stream"


@pytest.mark.behaviour("lemon_gateway.108")
@pytest.mark.parametrize(
    "signed_for",
    [
        f"https://lemon.example:8443/phone{PATH}",
        f"https://lemon.example/phone{PATH}",
    ],
)
async def test_the_signature_is_checked_against_the_configured_public_address(
    signed_for: str,
) -> None:
    """An address with a port and another path, forms with repeated and empty fields."""
    public = {"public_url": "https://lemon.example:8443/phone/"}
    async with phone_line(public) as line:
        fields = (*FORM.items(), ("Digits", ""), ("Tag", "b"), ("Tag", "a"), ("Tag", "a"))
        proof = signature(AUTH_TOKEN, signed_for, fields)
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                line.phone.base_url + PATH,
                data=urlencode(fields),
                headers={
                    "content-type": "application/x-www-form-urlencoded",
                    "x-twilio-signature": proof,
                    "x-forwarded-host": "somewhere.else.example",
                },
            ) as answer,
        ):
            assert answer.status == 200
            url = read_twiml(await answer.text()).url
    assert url == f"wss://lemon.example:8443/phone{PATH}/stream"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/status", f"{PATH}/recording"])
async def test_an_unsigned_request_is_refused(path: str) -> None:
    """Specification lemon_gateway 8: POST routes check the signature."""
    async with phone_line() as line:
        for headers in ({}, {"x-twilio-signature": "AAAA"}):
            async with (
                aiohttp.ClientSession() as http,
                http.post(line.phone.base_url + path, data=FORM, headers=headers) as answer,
            ):
                assert answer.status == 401
                assert await answer.json() == {"error": "unauthorized"}


async def test_nothing_is_signed_without_an_auth_token() -> None:
    """Specification lemon_gateway 7: a missing token is a refusal."""
    async with phone_line({"twilio_auth_token": None}) as line:
        status, _ = await line.phone.post(PATH, FORM)
        assert status == 401


@pytest.mark.behaviour("lemon_gateway.108")
async def test_no_switch_opens_both_the_requests_and_the_stream() -> None:
    """`validate_webhook = false` lets this machine in unsigned, no proxy, no missing token."""
    with anyio.fail_after(20):
        async with phone_line({"validate_webhook": False}) as line:
            proxied = {"x-forwarded-for": "203.0.113.7"}
            assert (await line.phone.post(PATH, FORM, headers=proxied))[0] == 401
            status, body = await line.phone.post(PATH, FORM, signed_for="https://wrong.example/")
            assert status == 200
            connect = read_twiml(body)
            async with line.phone.stream(connect.url) as stream:
                await stream.start({"callSid": CALL_SID})
                await stream.closed.wait()
                assert stream.close_code == 1008
            async with line.phone.stream(connect.url) as stream:
                await stream.start(connect.parameters)
                assert await stream.hear() == sound_of("Hello there")


async def test_a_token_in_the_address_of_the_socket_counts_too() -> None:
    """Specification lemon_gateway 8: as a compatible service sends it; sound waits for the name."""
    with anyio.fail_after(20):
        async with phone_line() as line:
            connect = await line.phone.call()
            url = f"{connect.url}?{urlencode(connect.parameters)}"
            async with line.phone.stream(url) as stream:
                await line.services.transcription()
                await stream.start({})
                assert await stream.hear() == sound_of("Hello there")


async def test_a_guessed_token_opens_nothing() -> None:
    """Specification lemon_gateway 8: no session is made, no service is asked."""
    with anyio.fail_after(20):
        async with phone_line() as line:
            connect = await line.phone.call()
            async with line.phone.stream(connect.url) as stream:
                await stream.start({**connect.parameters, "token": "guessed"})
                await stream.closed.wait()
                assert stream.close_code == 1008
            assert line.services.seen == []


async def test_status_messages_are_taken() -> None:
    """Specification lemon_gateway 8: log, 200 `OK`."""
    async with phone_line() as line:
        form = {**FORM, "CallStatus": "completed", "CallDuration": "7"}
        assert await line.phone.post(f"{PATH}/status", form) == (200, "OK")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"RecordingStatus": "in-progress"},
        {"RecordingUrl": "https://evil.example/x"},
        {"CallSid": "../x"},
    ],
)
async def test_recording_messages_are_answered_whatever_they_say(
    change: Mapping[str, str],
) -> None:
    """Specification lemon_gateway 8: 200 `OK`, the rest in the background."""
    form = {
        "CallSid": CALL_SID,
        "RecordingStatus": "completed",
        "RecordingUrl": "https://api.twilio.com/2010-04-01/Accounts/ACtests/Recordings/RE1",
        "RecordingDuration": "5",
        # Without these nothing is fetched, and this test leaves the machine alone.
        **change,
    }
    async with phone_line({"twilio_account_sid": None}) as line:
        assert await line.phone.post(f"{PATH}/recording", form) == (200, "OK")


async def test_a_finished_recording_is_handed_on_and_nothing_else() -> None:
    """Specification lemon_gateway 8: on `RecordingStatus=completed`."""
    url = "https://api.twilio.com/2010-04-01/Accounts/ACtests/Recordings/RE1"
    form = {"CallSid": CALL_SID, "RecordingUrl": url, "RecordingDuration": "5"}
    kept: list[Recording] = []
    clock = FakeClock()

    def keep(recording: Recording) -> bool:
        kept.append(recording)
        return False  # there is no room for it; the service is told the same

    calls = Calls(clock)
    endpoint = VoiceEndpoint(
        VoiceSecurity(AUTH_TOKEN, None, True),
        calls,
        MediaStreams(calls, Parts().of, CallLimits(1, 1), clock),
        keep,
    )
    listener = listen("127.0.0.1", 0, "port")
    async with serving_routes("voice", endpoint.routes(), listener, Limits()) as port:
        phone = Phone(f"http://127.0.0.1:{port}", AUTH_TOKEN)
        for status in ("in-progress", "completed", "absent"):
            sent = {**form, "RecordingStatus": status}
            assert await phone.post(f"{PATH}/recording", sent) == (200, "OK")
    assert kept == [Recording(CALL_SID, url, "5")]


@pytest.mark.parametrize("path", ["/", PATH.removesuffix("/voice"), f"{PATH}/else", f"{PATH}/"])
async def test_other_paths_are_not_there(path: str) -> None:
    """Specification lemon_gateway 8: these routes and no others."""
    async with phone_line() as line:
        status, _ = await line.phone.post(path, FORM)
        assert status == 404


async def test_a_form_with_too_many_fields_is_refused() -> None:
    """What nobody sends costs nothing to refuse."""
    async with phone_line() as line:
        status, _ = await line.phone.post(PATH, {f"f{n}": "" for n in range(1_001)})
        assert status == 400


def test_twiml_is_escaped() -> None:
    """Specification lemon_gateway 8: XML-escaped, whatever a caller is called."""
    hostile = "\"><Dial>+1</Dial>&'\x00\x1b"
    text = twiml("wss://lemon.example/a?b&c", {"from": hostile, "to": "'"})
    assert "<Dial>" not in text
    connect = read_twiml(text)
    assert connect.url == "wss://lemon.example/a?b&c"
    assert connect.parameters == {"from": "\"><Dial>+1</Dial>&'", "to": "'"}


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://lemon.example", "wss://lemon.example/webhooks/twilio/voice/stream"),
        ("http://127.0.0.1:4047", "ws://127.0.0.1:4047/webhooks/twilio/voice/stream"),
        ("https://h:8443/a/", "wss://h:8443/a/webhooks/twilio/voice/stream"),
    ],
)
def test_the_stream_is_where_the_server_is(base_url: str, url: str) -> None:
    """Specification lemon_gateway 8: `wss` for https."""
    assert stream_url(base_url) == url


# --- the surface ---


@pytest.mark.behaviour("lemon_gateway.108")
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"validate_webhook": False}, "set validate_webhook to true"),
        ({"twilio_auth_token": None}, "set twilio_auth_token"),
    ],
)
async def test_a_public_bind_without_protection_is_refused_with_one_line(
    change: Mapping[str, object], remedy: str
) -> None:
    """Loopback by default; beyond it only signed requests."""
    with temp_home() as paths:
        section = {**KEYS, "bind": "0.0.0.0", **change}
        async with runtime_with(section, FakeClock(), paths) as runtime:
            with pytest.raises(UnprotectedBind, match=remedy) as refused:
                (await surface(runtime)).check_bind()
            assert "\n" not in str(refused.value)


async def test_a_protected_surface_may_be_public_and_is_private_by_default() -> None:
    """Specification lemon_gateway 12: bind loopback, port 4047."""
    with temp_home() as paths:
        async with runtime_with({**KEYS, "bind": "0.0.0.0"}, FakeClock(), paths) as runtime:
            (await surface(runtime)).check_bind()
        async with runtime_with(KEYS, FakeClock(), paths) as runtime:
            way_in = await surface(runtime)
    assert (way_in.id, way_in.bind, way_in.port) == ("voice", "127.0.0.1", 4047)


class Kept:
    """Keeps nothing, and fails as it is told."""

    def __init__(self, failures: list[Exception | None]) -> None:
        self.failures = failures
        self.asked: list[tuple[str, str]] = []

    async def fetch(self, recording: Recording, caller: str) -> Path:
        self.asked.append((recording.call_sid, caller))
        failure = self.failures.pop(0)
        if failure is not None:
            raise failure
        return Path("kept")


async def test_recordings_are_fetched_one_after_the_other_whatever_happens_to_one() -> None:
    """Specification lemon_gateway 8: `from` is taken from the call, `unknown` without it."""
    calls = Calls(FakeClock())
    calls.begin("CA1", "+1555")
    calls.end("CA1")
    kept = Kept([OSError("the disk is full"), RuntimeError("a fault"), None])
    into, waiting = anyio.create_memory_object_stream[Recording](3)
    with into, waiting:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_recordings, kept, calls, waiting)
            for sid in ("CA1", "CA2", "CA1"):
                into.send_nowait(Recording(sid, "https://api.twilio.com/x", "1"))
            await settle()
            tasks.cancel_scope.cancel()
    assert kept.asked == [("CA1", "+1555"), ("CA2", "unknown"), ("CA1", "+1555")]


async def test_a_server_takes_calls_when_it_is_configured_to() -> None:
    """Specification lemon_gateway 6, 8: only with `gateway_ingress_enabled` and its own switch."""
    voice = {**KEYS, "enabled": True, "websocket_port": 0}
    with temp_home() as paths, anyio.fail_after(10):
        for ingress in (False, True):
            section = {
                "gateway_ingress_enabled": ingress,
                "health_enabled": False,
                "voice": voice,
            }
            async with booted(paths, section) as (runtime, _):
                assert ("voice" in runtime.listening) is ingress
                if ingress:
                    phone = Phone(runtime.listening["voice"], AUTH_TOKEN)
                    connect = await phone.call()
                    assert connect.parameters["callSid"] == CALL_SID
