"""Recordings: ordered with credentials, fetched from the service alone, named safely."""

from __future__ import annotations

import base64
import ssl
import stat
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from lemon_core.testing import FakeClock
from lemon_core.testing.certificates import Authority
from lemon_gateway.tests.voice_calls import KEYS, keys_of, time_passing
from lemon_gateway.tests.voice_servers import CALL_SID, CALLER, running_services
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.providers import Endpoints
from lemon_gateway.voice.recordings import Recording, Recordings, file_name

SID = "RE0123456789abcdef0123456789abcdef"
URL = f"https://api.twilio.com/2010-04-01/Accounts/ACtests/Recordings/{SID}"
WAV = b"RIFF" + bytes(100_000)
FORM = {
    "CallSid": CALL_SID,
    "RecordingSid": SID,
    "RecordingUrl": URL,
    "RecordingStatus": "completed",
    "RecordingDuration": "42",
}
BASIC = "Basic " + base64.b64encode(b"ACtests:auth-token-of-tests").decode()


class Everywhere(AbstractResolver):
    """Every name is a server of this test."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        self.asked.append(host)
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=self._port, family=family, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


@dataclass
class Store:
    """The service's store of recordings, with what it is asked."""

    replies: deque[web.StreamResponse] = field(default_factory=deque)
    seen: list[tuple[str, str]] = field(default_factory=list)
    gate: anyio.Event | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.path, request.headers.get("Authorization", "")))
        if self.gate is not None:
            await self.gate.wait()
        return self.replies.popleft() if self.replies else web.Response(body=WAV)


@dataclass(frozen=True, slots=True)
class Here:
    """Recordings of a home, and the service."""

    recordings: Recordings
    store: Store
    resolver: Everywhere
    clock: FakeClock
    folder: Path


@asynccontextmanager
async def service(folder: Path, section: Mapping[str, object] = KEYS) -> AsyncIterator[Here]:
    """A service that answers by TLS to the name of the real one."""
    authority, clock, store = Authority(), FakeClock(), Store()
    certificate, key = authority.client("api.twilio.com", alternative="api.twilio.com").write(
        folder, "server"
    )
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    client_side = ssl.create_default_context(cadata=authority.cert.decode())
    app = web.Application()
    app.router.add_get("/{path:.*}", store.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_side)
    await site.start()
    resolver = Everywhere(int(runner.addresses[0][1]))
    connector = aiohttp.TCPConnector(resolver=resolver, ssl=client_side)
    try:
        with anyio.fail_after(10):
            async with (
                keys_of(section, clock) as keys,
                aiohttp.ClientSession(connector=connector) as http,
            ):
                kept = folder / "recordings"
                made = Recordings(http, keys, clock, Endpoints(), kept)
                yield Here(made, store, resolver, clock, kept)
    finally:
        await runner.cleanup()


async def test_a_recording_is_ordered_of_both_sides() -> None:
    """Specification lemon_gateway 8: on stream start, with the account's credentials."""
    clock = FakeClock()
    with anyio.fail_after(10):
        async with (
            running_services() as services,
            keys_of(KEYS, clock) as keys,
            aiohttp.ClientSession() as http,
        ):
            made = Recordings(http, keys, clock, services.endpoints, Path("unused"))
            await made.order(CALL_SID, "https://lemon.example/webhooks/twilio/voice/recording")
            (seen,) = services.seen
            path = f"/2010-04-01/Accounts/ACtests/Calls/{CALL_SID}/Recordings.json"
            assert seen.path == path
            assert seen.headers["Authorization"] == BASIC
            assert seen.body == {
                "RecordingChannels": "dual",
                "RecordingTrack": "both",
                "Trim": "do-not-trim",
                "RecordingStatusCallback": "https://lemon.example/webhooks/twilio/voice/recording",
            }
            services.order_status = 404
            with pytest.raises(ProviderFailed) as failed:
                await made.order(CALL_SID, "https://lemon.example/")
            assert (failed.value.code, failed.value.status) == ("api_error", 404)
            with pytest.raises(ProviderFailed) as failed:
                await made.order("temp_0123", "https://lemon.example/")
            assert failed.value.code == "refused"


@pytest.mark.parametrize("gone", ["twilio_account_sid", "twilio_auth_token"])
async def test_without_credentials_nothing_is_ordered_or_fetched(tmp_path: Path, gone: str) -> None:
    """Specification lemon_gateway 8: `missing_twilio_credentials`."""
    async with service(tmp_path, {**KEYS, gone: None}) as here:
        for attempt in (
            here.recordings.order(CALL_SID, "https://lemon.example/"),
            here.recordings.fetch(Recording.of_form(FORM), CALLER),
        ):
            with pytest.raises(ProviderFailed) as failed:
                await attempt
            assert failed.value.code == "missing_twilio_credentials"
        assert here.store.seen == []


async def test_a_finished_recording_is_kept_under_its_day(tmp_path: Path) -> None:
    """Specification lemon_gateway 8: `<dir>/<day UTC>/<CallSid>_<from>_<duration>s.wav`."""
    async with service(tmp_path) as here:
        path = await here.recordings.fetch(Recording.of_form(FORM), CALLER)
        assert path == here.folder / "2023-11-14" / f"{CALL_SID}_+15551230001_42s.wav"
        assert path.read_bytes() == WAV
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert here.store.seen == [(f"/2010-04-01/Accounts/ACtests/Recordings/{SID}.wav", BASIC)]
        assert here.resolver.asked == ["api.twilio.com"]
        # Told twice, it is one file.
        await here.recordings.fetch(Recording.of_form(FORM), CALLER)
        assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.behaviour("lemon_gateway.35")
@pytest.mark.parametrize(
    ("caller", "named"),
    [
        ("+15551230001", "+15551230001"),
        ("../../../etc/cron.d/x", "etccrondx"),
        ("sip:mallory@evil.example;x=\x00/..", "sipmalloryevilexamplex"),
        ("client:" + "a" * 100, "client" + "a" * 24),
        ("..", "unknown"),
        ("", "unknown"),
        ("日本", "unknown"),
    ],
)
def test_a_name_holds_nothing_of_a_hostile_number_but_letters(caller: str, named: str) -> None:
    """Specification lemon_gateway 13, row 35: a safe file name for a hostile `From`."""
    assert file_name(Recording.of_form(FORM), caller) == f"{CALL_SID}_{named}_42s.wav"


@pytest.mark.parametrize(
    "change",
    [
        {"CallSid": "../CA1"},
        {"CallSid": ""},
        {"CallSid": "CA 1"},
        {"RecordingDuration": "4/2"},
        {"RecordingDuration": "-1"},
        {"RecordingUrl": ""},
        {"RecordingUrl": "http://api.twilio.com/x"},
        {"RecordingUrl": "https://twilio.com.evil.example/x"},
        {"RecordingUrl": "https://eviltwilio.com/x"},
        {"RecordingUrl": "https://evil.example/https://api.twilio.com"},
        {"RecordingUrl": "https://api.twilio.com@evil.example/x"},
        {"RecordingUrl": "https://user@api.twilio.com/x"},
        {"RecordingUrl": "https://api.twilio.com:8443/x"},
        {"RecordingUrl": "https://evil.example\\.twilio.com/x"},
        {"RecordingUrl": "https://169.254.169.254/x"},
        {"RecordingUrl": "https://[::1/x"},
        {"RecordingUrl": "file:///etc/passwd"},
    ],
)
def test_a_message_that_names_another_place_is_refused(change: Mapping[str, str]) -> None:
    """Specification lemon_gateway 8: an https host under twilio.com, ids alphanumeric."""
    with pytest.raises(ProviderFailed) as failed:
        Recording.of_form({**FORM, **change})
    assert failed.value.code == "refused"


async def test_credentials_do_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    """Specification lemon_gateway 8: the host of each hop."""
    async with service(tmp_path) as here:
        here.store.replies += [
            redirect("https://media.twilio.com/there"),
            redirect("https://evil.example/there"),
        ]
        with pytest.raises(ProviderFailed) as failed:
            await here.recordings.fetch(Recording.of_form(FORM), CALLER)
        assert failed.value.code in ("refused", "request_failed")
        assert "evil.example" not in here.resolver.asked
        assert list(here.folder.rglob("*.*")) == []


async def test_a_recording_that_moves_for_ever_is_refused(tmp_path: Path) -> None:
    """A loop of redirects ends."""
    async with service(tmp_path) as here:
        here.store.replies += [redirect("/again") for _ in range(10)]
        with pytest.raises(ProviderFailed) as failed:
            await here.recordings.fetch(Recording.of_form(FORM), CALLER)
        assert failed.value.code == "refused"
        assert len(here.store.seen) == 4


async def test_a_recording_that_does_not_come_leaves_no_file(tmp_path: Path) -> None:
    """Specification lemon_gateway 8: 30 s; whole or not at all."""
    async with service(tmp_path) as here:
        here.store.replies.append(web.Response(status=404))
        with pytest.raises(ProviderFailed) as failed:
            await here.recordings.fetch(Recording.of_form(FORM), CALLER)
        assert (failed.value.code, failed.value.status) == ("api_error", 404)
        here.store.gate = anyio.Event()
        began_ms = here.clock.monotonic_ms()
        with pytest.raises(ProviderFailed) as failed:
            async with time_passing(here.clock, 1_000):
                await here.recordings.fetch(Recording.of_form(FORM), CALLER)
        assert failed.value.code == "request_failed"
        assert here.clock.monotonic_ms() - began_ms >= 30_000
        here.store.gate.set()
        assert [path for path in here.folder.rglob("*") if path.is_file()] == []


def redirect(location: str) -> web.Response:
    return web.Response(status=302, headers={"location": location})
