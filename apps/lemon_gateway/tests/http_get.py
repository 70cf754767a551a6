"""One HTTP request over a plain connection."""

from __future__ import annotations

import json

import anyio

Answer = tuple[int, dict[str, object]]


async def http_get(port: int, path: str, method: str = "GET") -> Answer:
    """The status and JSON body that a server on loopback answers."""
    status, _, body = await http_get_text(port, path, method)
    return status, json.loads(body) if body.startswith("{") else {}


async def http_get_text(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """The status, content type and body that a server on loopback answers."""
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
    lines = head_bytes.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(lines[0].split()[1]), headers.get("content-type", ""), body.decode()
