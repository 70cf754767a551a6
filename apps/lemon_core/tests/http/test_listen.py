"""The port of an HTTP surface."""

from __future__ import annotations

import socket

import pytest

from lemon_core.http.listen import PortUnusable, listen, port_of


def test_an_accepted_connection_is_one_that_asyncio_knows_as_tcp() -> None:
    """Else it leaves Nagle's algorithm on, and every answer takes 40 ms."""
    with (
        listen("127.0.0.1", 0, "port") as listener,
        socket.create_connection(("127.0.0.1", port_of(listener))),
    ):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_a_port_that_cannot_be_opened_names_the_key_that_sets_it() -> None:
    with listen("127.0.0.1", 0, "port") as taken:
        port = port_of(taken)
        with pytest.raises(PortUnusable, match=r"set port in \[x\] to a free port"):
            listen("127.0.0.1", port, "port in [x]")
    with pytest.raises(PortUnusable):
        listen("192.0.2.1", 0, "port")
