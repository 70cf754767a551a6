"""One HTTP request over a plain connection."""

from __future__ import annotations

import json

import anyio

Answer = tuple[int, dict[str, object]]


async def http_get(port: int, path: str, method: str = "GET") -> Answer:
    """The status and JSON body that a server on loopback answers."""
    stream = await anyio.connect_tcp("127.0.0.1", port)
    async with stream:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        await stream.send(head.encode())
        raw = b""
        try:
            while True:
                raw += await stream.receive()
        except anyio.EndOfStream:
            pass
    head_bytes, _, body = raw.partition(b"\r\n\r\n")
    return int(head_bytes.split()[1]), json.loads(body) if body.startswith(b"{") else {}
