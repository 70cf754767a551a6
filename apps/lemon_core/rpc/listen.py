"""Where a server listens and a client connects: a Unix socket or a TCP address."""

from __future__ import annotations

import ipaddress
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings
from lemon_core.state_lock import SocketInUse, check_socket_path, private_dir

_UNIX: Final = "unix:"


class ListenError(LemonError):
    """A server cannot listen where it was told to."""

    code = "listen_failed"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address, self.reason = address, reason


@dataclass(frozen=True, slots=True)
class UnixListen:
    """A socket file for the operator of this machine alone."""

    path: Path

    @property
    def target(self) -> str:
        """What gRPC is told."""
        # gRPC reads it as a URI: without the quotes a `#` or `%` in a path means something else.
        return _UNIX + quote(str(self.path))


@dataclass(frozen=True, slots=True)
class TcpListen:
    """A TCP address; port 0 takes a free one."""

    host: str
    port: int

    @property
    def target(self) -> str:
        """What gRPC is told."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True for an address that only this machine can reach."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


Listen = UnixListen | TcpListen


def parse_listen(text: str, paths: PathSettings) -> Listen:
    """`unix:<path>` (with a leading `~` the home), or `host:port`; raises `ListenError`."""
    if text.startswith(_UNIX):
        name = text.removeprefix(_UNIX).strip()
        if not name:
            raise ListenError(text, "a path is missing after unix:")
        return UnixListen(paths.expand(name).absolute())
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ListenError(text, "expected unix:<path> or <host>:<port>")
    # The name could be mapped to anything; what it means is this address.
    return TcpListen("127.0.0.1" if host == "localhost" else host, int(port))


def check_unix(listen: UnixListen) -> None:
    """Make sure that a private folder is there and the path is free.

    Raises `SocketPathTooLong`, `StateDirUnusable`, `SocketInUse` and `ListenError`. What a dead
    server left behind is for the holder of the state lock to remove, before (`claim_socket`).
    """
    path = listen.path
    check_socket_path(path)
    private_dir(path.parent)
    mode = stat.S_IMODE(path.parent.stat().st_mode)
    if mode & 0o077:
        raise ListenError(
            str(path.parent),
            f"others may enter this folder (mode {mode:o}): run chmod 700 on it, or configure a "
            "socket in a private folder",
        )
    if path.is_symlink() or path.exists():
        # gRPC would silently take a socket file away from whoever listens on it.
        raise SocketInUse(path, "exists: stop the server that owns it or configure another path")


def check_tcp(listen: TcpListen, *, authenticated: bool, encrypted: bool) -> None:
    """Refuse to offer runs to anybody, or beyond this machine in the clear; raises `ListenError`.

    `authenticated`: there are tokens, or certificates name the peers.
    """
    if not authenticated:
        raise ListenError(
            listen.target,
            'auth = "none" exists on a Unix socket only: configure a token, or listen on unix:',
        )
    if not listen.is_loopback and not encrypted:
        raise ListenError(
            listen.target,
            "is not loopback, and a token must not travel in the clear: set tls_cert and tls_key, "
            "or listen on 127.0.0.1 or on unix:",
        )
