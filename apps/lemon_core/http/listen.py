"""The TCP port of an HTTP surface, opened before anything answers on it."""

from __future__ import annotations

import socket

from lemon_core.errors import LemonError


class PortUnusable(LemonError):
    """A configured port cannot be opened."""

    code = "port_unusable"

    def __init__(self, host: str, port: int, key: str, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port} ({reason}): set {key} to a free port")
        self.host, self.port, self.key = host, port, key


def listen(host: str, port: int, key: str) -> socket.socket:
    """A socket that takes connections on `host`; port 0 lets the system choose.

    Raises `PortUnusable`, which tells that `key` of the configuration sets the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio turns Nagle's algorithm off only for sockets whose protocol says TCP,
    # and an answer in two writes would wait 40 ms for its second.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A server that just ended leaves connections behind that would keep the port for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as exc:
        listener.close()
        raise PortUnusable(host, port, key, exc.strerror or str(exc)) from exc
    listener.setblocking(False)
    return listener


def port_of(listener: socket.socket) -> int:
    """The port that `listener` has."""
    return int(listener.getsockname()[1])
