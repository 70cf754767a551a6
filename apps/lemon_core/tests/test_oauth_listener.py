"""The loopback listener of a sign-in (specification lemon_core 15)."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import anyio
import anyio.abc
import pytest

from lemon_core.oauth_listener import (
    READ_TIMEOUT_MS,
    REQUEST_MAX_BYTES,
    OAuthListener,
    OAuthListenerError,
    oauth_listener,
    parse_redirect_uri,
)
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

URI = "http://localhost:0/auth/callback"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def listener(clock: FakeClock) -> AsyncIterator[OAuthListener]:
    with anyio.fail_after(5):
        async with oauth_listener(URI, clock) as opened:
            yield opened


def port_of(listener: OAuthListener) -> int:
    port = urlsplit(listener.redirect_uri).port
    assert port
    return port


@asynccontextmanager
async def connected(listener: OAuthListener) -> AsyncIterator[anyio.abc.SocketStream]:
    async with await anyio.connect_tcp("127.0.0.1", port_of(listener)) as stream:
        yield stream


async def read_all(stream: anyio.abc.ByteStream) -> str:
    received = b""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            received += await stream.receive()
    return received.decode()


async def exchange(listener: OAuthListener, raw: str) -> str:
    async with connected(listener) as stream:
        await stream.send(raw.encode("latin-1"))
        return await read_all(stream)


async def get(listener: OAuthListener, target: str, method: str = "GET") -> str:
    return await exchange(listener, f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")


def status(response: str) -> int:
    return int(response.split(" ", 2)[1])


@pytest.mark.behaviour("lemon_core.42")
@pytest.mark.parametrize(
    "text",
    [
        "https://localhost:1455/cb",
        "http://example.org:1455/cb",
        "http://0.0.0.0:1455/cb",
        "http://127.0.0.2:1455/cb",
        "http://[::1]:1455/cb",
        "http://localhost.example.org:1455/cb",
        "http://localhost@example.org:1455/cb",
        "http://user@localhost:1455/cb",
        "http://LOCALHOST:1455/cb",
        "http://localhost/cb",
        "http://localhost:1455",
        "http://localhost:1455/cb?x=1",
        "http://localhost:1455/cb#x",
        "http://localhost:65536/cb",
        "http://localhost:x/cb",
        " http://localhost:1455/cb",
        "http://localhost:1455/c\tb",
        "localhost:1455/cb",
        "http://[::1/cb",
        "",
    ],
)
async def test_only_a_loopback_redirect_is_opened(text: str, clock: FakeClock) -> None:
    with pytest.raises(OAuthListenerError, match="no loopback redirect"):
        async with oauth_listener(text, clock):
            pytest.fail("opened")


def test_both_spellings_of_loopback_are_taken() -> None:
    for text in ("http://localhost:1455/auth/callback", "http://127.0.0.1:1/"):
        assert str(parse_redirect_uri(text)) == text


async def test_the_parameters_of_one_request_arrive_and_the_port_is_free_again(
    listener: OAuthListener,
) -> None:
    response = await get(listener, "/auth/callback?code=a%26b&state=%C3%A9&scope=")
    assert status(response) == 200
    head, _, page = response.partition("\r\n\r\n")
    assert "cache-control: no-store" in head.lower()
    assert "close this window" in page
    assert await listener.wait(60_000) == {"code": "a&b", "state": "é", "scope": ""}
    with pytest.raises(OSError, match=r"refused|failed"):
        await get(listener, "/auth/callback?code=late")


@pytest.mark.behaviour("lemon_core.42")
async def test_wrong_paths_are_not_found_and_change_nothing(listener: OAuthListener) -> None:
    for target in (
        "/",
        "/favicon.ico",
        "/auth/callback/?code=x",
        "/auth/callbackx?code=x",
        "/AUTH/callback?code=x",
        "/auth/../auth/callback?code=x",
        "//auth/callback?code=x",
        "http://localhost/auth/callback?code=x",
        "*",
    ):
        assert status(await get(listener, target)) == 404
    assert status(await get(listener, "/auth/callback?code=right")) == 200
    assert await listener.wait(60_000) == {"code": "right"}


async def test_what_is_no_end_of_a_sign_in_is_waited_past(listener: OAuthListener) -> None:
    too_many = "&".join(f"a{number}=1" for number in range(60))
    for query in ("", "?", "?state=x", "?code=", "?code=a&code=b", "?code", f"?code=a&{too_many}"):
        assert status(await get(listener, f"/auth/callback{query}")) == 400
    assert status(await get(listener, "/auth/callback?code=a%ff")) == 400
    assert status(await get(listener, "/auth/callback?code=x", "POST")) == 405
    head = await get(listener, "/auth/callback?code=x", "HEAD")
    assert (status(head), head.partition("\r\n\r\n")[2]) == (405, "")
    assert status(await exchange(listener, "not http at all\r\n\r\n")) == 400
    assert status(await get(listener, "/auth/callback?code=x")) == 200


async def test_text_of_the_provider_is_escaped(listener: OAuthListener) -> None:
    told = "%3Cscript%3Ealert(1)%3C/script%3E"
    page = await get(listener, f"/auth/callback?error=denied&error_description={told}")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    parameters = await listener.wait(60_000)
    assert parameters is not None
    assert parameters["error"] == "denied"


async def test_of_two_requests_one_counts(listener: OAuthListener) -> None:
    async with connected(listener) as early, connected(listener) as late:
        await early.send(b"GET /auth/callback?code=first HTTP/1.1\r\nHost: localhost\r\n")
        await late.send(b"GET /auth/callback?code=second HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(await read_all(late)) == 200
        await early.send(b"\r\n")
        assert status(await read_all(early)) == 404
    assert await listener.wait(60_000) == {"code": "second"}


async def test_a_slow_request_is_dropped_after_five_seconds(
    listener: OAuthListener, clock: FakeClock
) -> None:
    async with connected(listener) as slow, connected(listener) as silent:
        await slow.send(b"GET /auth/callback?code=x HTTP/1.1\r\n")
        await clock.wait_for_sleepers(2)
        await clock.advance(READ_TIMEOUT_MS - 1)
        assert clock.sleepers == 2
        # One byte more does not start the five seconds again.
        await slow.send(b"X")
        await clock.advance(1)
        assert clock.sleepers == 0
        assert await read_all(slow) == ""
        assert await read_all(silent) == ""
    assert status(await get(listener, "/auth/callback?code=y")) == 200


async def test_a_request_of_more_than_sixteen_kibibytes_is_refused(
    listener: OAuthListener,
) -> None:
    line, end = "GET /auth/callback?code=x HTTP/1.1\r\nHost: localhost\r\nX: ", "\r\n\r\n"
    filler = "x" * (REQUEST_MAX_BYTES - len(line) - len(end))
    assert status(await exchange(listener, f"{line}{filler}x{end}")) == 431
    assert status(await exchange(listener, "x" * REQUEST_MAX_BYTES)) in (400, 431)
    assert status(await exchange(listener, f"{line}{filler}{end}")) == 200


async def test_waiting_ends_without_a_request(listener: OAuthListener, clock: FakeClock) -> None:
    results: list[object] = []

    async def wait() -> None:
        results.append(await listener.wait(120_000))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.wait_for_sleepers()
        await clock.advance(120_000)
    assert results == [None]


async def test_a_visitor_who_leaves_disturbs_nobody(listener: OAuthListener) -> None:
    async with connected(listener) as stream:
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await stream.send(b"GET /auth")
    assert status(await get(listener, "/auth/callback?code=x")) == 200


async def test_a_taken_port_is_told_and_leaving_gives_it_back(clock: FakeClock) -> None:
    with anyio.fail_after(5):
        async with oauth_listener("http://127.0.0.1:0/cb", clock) as first:
            with pytest.raises(OAuthListenerError, match="is taken"):
                async with oauth_listener(first.redirect_uri, clock):
                    pytest.fail("opened")
        async with oauth_listener(first.redirect_uri, clock) as again:
            assert again.redirect_uri == first.redirect_uri


async def test_a_stranger_on_the_other_loopback_address_is_told(clock: FakeClock) -> None:
    """Who listens on ::1 would get the code of a browser that takes `localhost` for it."""
    with socket.socket(socket.AF_INET6) as stranger:
        try:
            stranger.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no ::1")
        stranger.listen()
        port = stranger.getsockname()[1]
        with anyio.fail_after(5), pytest.raises(OAuthListenerError, match="::1 is taken"):
            async with oauth_listener(f"http://localhost:{port}/cb", clock):
                pytest.fail("opened")
    with anyio.fail_after(5):
        async with oauth_listener(f"http://127.0.0.1:{port}/cb", clock):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux what listens where")
@pytest.mark.behaviour("lemon_core.42")
async def test_nothing_but_loopback_is_bound(listener: OAuthListener) -> None:
    hexed = f":{port_of(listener):04X}"
    bound = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for line in lines:
                local, state = line.split()[1], line.split()[3]
                if local.endswith(hexed) and state == "0A":
                    bound.add(local.removesuffix(hexed))
    assert bound <= {"0100007F", "00000000000000000000000001000000"}
    assert "0100007F" in bound
