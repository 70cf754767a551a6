"""The server of the ways in bounds what a client can cost, and says so."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import anyio
import pytest
from anyio.abc import SocketStream
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from lemon_core.http.listen import listen
from lemon_gateway.ingress_limits import Limits
from lemon_gateway.ingress_server import peer_is_local, remote_ip, serving_routes

pytestmark = pytest.mark.anyio

SMALL = Limits(body_bytes=1_000, head_bytes=2_000, connections=3)


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} from {remote_ip(request)}")


async def blunt(request: Request) -> PlainTextResponse:
    return PlainTextResponse("not read")


async def long(request: Request) -> PlainTextResponse:
    # More than the system keeps for a client that does not read.
    return PlainTextResponse("x" * 20_000_000)


async def broken(request: Request) -> PlainTextResponse:
    raise RuntimeError("this one breaks")


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text((await websocket.receive_text()).upper())
    await websocket.close()


ROUTES: Sequence[BaseRoute] = (
    Route("/echo", echo, methods=["POST"]),
    Route("/blunt", blunt, methods=["POST"]),
    Route("/long", long, methods=["POST"]),
    Route("/broken", broken, methods=["POST"]),
    WebSocketRoute("/talk", talk),
)


@asynccontextmanager
async def served(limits: Limits = SMALL) -> AsyncIterator[int]:
    listener: socket.socket = listen("127.0.0.1", 0, "port")
    with anyio.fail_after(10):
        async with serving_routes("test", ROUTES, listener, limits) as port:
            yield port


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[SocketStream]:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield stream


async def all_of(stream: SocketStream) -> bytes:
    found = b""
    with anyio.fail_after(5):
        try:
            while True:
                found += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return found


async def post(port: int, path: str, **more: object) -> tuple[int, str]:
    url = f"http://127.0.0.1:{port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, **more) as answer,  # type: ignore[arg-type]  # handed through
    ):
        return answer.status, await answer.text()


async def test_a_body_within_the_limit_arrives_and_other_paths_are_404() -> None:
    async with served() as port:
        assert await post(port, "/echo", data=b"x" * 1_000) == (200, "1000 from 127.0.0.1")
        assert await post(port, "/elsewhere") == (404, '{"error":"not found"}')
        assert await post(port, "/talk") == (404, '{"error":"not found"}')
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"http://127.0.0.1:{port}/echo")
            assert answer.status == 404


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413_with_and_without_a_length(chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    async with served() as port:
        data = parts() if chunked else b"x" * 3_000
        assert await post(port, "/echo", data=data) == (413, '{"error":"payload too large"}')


async def test_a_length_beyond_all_measure_is_refused_unread() -> None:
    async with served() as port, connected(port) as stream:
        await stream.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
        answer = await all_of(stream)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


async def test_who_asks_before_sending_is_not_told_to_go_on_in_vain() -> None:
    async with served() as port, connected(port) as stream:
        head = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n"
        await stream.send(head + b"expect: 100-continue\r\n\r\n")
        answer = await all_of(stream)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_head_over_the_limit_is_refused() -> None:
    async with served() as port, connected(port) as stream:
        await stream.send(b"POST /echo HTTP/1.1\r\nx-long: " + b"x" * 3_000)
        assert (await all_of(stream)).startswith(b"HTTP/1.1 400 ")


async def test_a_head_over_the_limit_that_comes_at_once_is_refused_too() -> None:
    head = b"POST /blunt HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nx-long: " + b"x" * 9_000
    async with served() as port, connected(port) as stream:
        await stream.send(head + b"\r\n\r\n")
        assert (await all_of(stream)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(("size", "status"), [(3_000, 403), (9_000, 431)])
async def test_a_websocket_with_a_head_over_a_limit_is_refused(size: int, status: int) -> None:
    """The second size is more than websockets itself takes in a line."""
    async with served() as port, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"ws://127.0.0.1:{port}/talk", headers={"x-long": "x" * size})
    assert refused.value.status == status


@pytest.mark.parametrize("sent", [b"", b"POST /echo HT"])
async def test_a_head_that_comes_too_slowly_is_408(sent: bytes) -> None:
    async with served(replace(SMALL, head_ms=30)) as port, connected(port) as stream:
        if sent:
            await stream.send(sent)
        assert (await all_of(stream)).startswith(b"HTTP/1.1 408 ")


async def test_a_second_head_on_a_connection_has_its_limit_too() -> None:
    first = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx"
    async with served(replace(SMALL, head_ms=100)) as port, connected(port) as stream:
        await stream.send(first)
        assert b"1 from" in await stream.receive()
        await stream.send(b"POST /echo HT")
        assert (await all_of(stream)).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_comes_too_slowly_is_408() -> None:
    async with served(replace(SMALL, body_ms=30)) as port, connected(port) as stream:
        await stream.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nx")
        answer = await all_of(stream)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request took too long" in answer


async def test_a_body_nobody_wants_keeps_the_connection_only_if_it_ends_soon() -> None:
    async with served() as port:
        assert await post(port, "/blunt", data=b"x" * 900) == (200, "not read")
        async with connected(port) as stream:
            await stream.send(b"POST /blunt HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\nx")
            answer = await all_of(stream)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


async def test_connections_beyond_the_cap_are_turned_away_and_later_ones_served() -> None:
    async with served() as port:
        async with connected(port), connected(port), connected(port) as third:
            await third.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx")
            assert (await third.receive()).startswith(b"HTTP/1.1 200 ")
            async with connected(port) as fourth:
                assert (await all_of(fourth)).startswith(b"HTTP/1.1 503 ")
        assert (await post(port, "/echo", data=b"x"))[0] == 200


async def ask_for_ever(stream: SocketStream, requests: bytes) -> None:
    while True:
        await stream.send(requests)


async def test_a_client_that_reads_nothing_loses_its_connection() -> None:
    request = b"POST /long HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    async with served(replace(SMALL, send_ms=30)) as port, connected(port) as stream:
        with pytest.raises(anyio.BrokenResourceError):
            await ask_for_ever(stream, request * 1_000)


async def test_a_request_that_breaks_is_500_and_the_next_one_is_served() -> None:
    async with served() as port:
        assert await post(port, "/broken") == (500, '{"error":"internal server error"}')
        assert (await post(port, "/echo", data=b"x"))[0] == 200


async def test_a_request_is_logged_without_its_query(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served() as port:
        await post(port, "/echo?token=hush", data=b"x")
        async with aiohttp.ClientSession() as session:
            await session.ws_connect(f"ws://127.0.0.1:{port}/talk?token=hush")
    told = [vars(line) for line in caplog.records]
    (line, *_) = [line["lemon_fields"] for line in told if line["msg"] == "ingress.request"]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/echo", 200)
    assert "hush" not in str(told)


async def test_a_path_is_logged_as_it_was_sent_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    """Decoded it might clear the terminal of whoever reads the log."""
    caplog.set_level(logging.INFO)
    async with served() as port, connected(port) as stream:
        await stream.send(b"GET /%1b[2J" + b"a" * 900 + b" HTTP/1.1\r\nhost: x\r\n")
        await stream.send(b"connection: close\r\n\r\n")
        assert (await all_of(stream)).startswith(b"HTTP/1.1 404 ")
    told = [vars(line) for line in caplog.records]
    (line,) = [line["lemon_fields"] for line in told if line["msg"] == "ingress.request"]
    assert line["path"].startswith("/%1b[2Ja")
    assert len(line["path"]) == 200


async def test_websockets_work_and_their_messages_are_bounded() -> None:
    limits = replace(SMALL, ws_message_bytes=100)
    async with served(limits) as port, aiohttp.ClientSession() as session:
        async with session.ws_connect(f"ws://127.0.0.1:{port}/talk?token=x") as channel:
            await channel.send_str("hello")
            assert await channel.receive_str() == "HELLO"
        async with session.ws_connect(f"ws://127.0.0.1:{port}/talk") as channel:
            await channel.send_str("x" * 200)
            assert (await channel.receive()).type in (
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSED,
            )


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [("", "127.0.0.1"), ("6.6.6.6, 9.9.9.9", "9.9.9.9"), ("not an address", "127.0.0.1")],
)
async def test_a_proxy_on_this_machine_says_who_asks(forwarded: str, expected: str) -> None:
    async with served() as port:
        headers = {"x-forwarded-for": forwarded} if forwarded else {}
        answer = await post(port, "/echo", data=b"x", headers=headers)
    assert answer == (200, f"1 from {expected}")


@pytest.mark.parametrize(
    ("peer", "forwarded", "local", "shown"),
    [
        ("127.0.0.1", "9.9.9.9", True, "9.9.9.9"),
        ("::1", "2001:DB8::1", True, "2001:db8::1"),
        ("::ffff:127.0.0.1", "9.9.9.9", True, "9.9.9.9"),
        ("::ffff:8.8.8.8", "9.9.9.9", False, "8.8.8.8"),
        ("8.8.8.8", "127.0.0.1", False, "8.8.8.8"),
        ("a unix socket", "9.9.9.9", False, "a unix socket"),
    ],
)
def test_forwarded_addresses_count_only_from_this_machine(
    peer: str, forwarded: str, local: bool, shown: str
) -> None:
    headers = [(b"x-forwarded-for", forwarded.encode())]
    asked = HTTPConnection({"type": "http", "client": (peer, 1), "headers": headers})
    assert (peer_is_local(asked), remote_ip(asked)) == (local, shown)


async def test_a_request_in_the_making_gets_a_second_when_the_server_stops() -> None:
    """It is cancelled then, and nothing of it is left."""
    ended = anyio.Event()

    async def endless(request: Request) -> PlainTextResponse:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return PlainTextResponse("")

    listener = listen("127.0.0.1", 0, "port")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            routes = [Route("/", endless, methods=["POST"])]
            async with (
                serving_routes("test", routes, listener, SMALL) as port,
                connected(port) as stream,
            ):
                await stream.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
                tasks.cancel_scope.cancel()
    assert ended.is_set()
