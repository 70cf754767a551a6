"""Addresses of the gRPC surfaces, as they stand in `listen` and in `engine_targets`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket; a leading `~` of `path` is for `PathSettings.expand`."""

    path: str


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP endpoint; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """The address that `unix:<path>` or `<host>:<port>` names; raises `ValueError`."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith(("/", "~/")) or "\0" in path:
            raise ValueError("must be unix: and an absolute path, for example unix:/run/lemon.sock")
        return UnixAddress(path)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    ipv6_without_brackets = ":" in host and not text.startswith("[")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not host or ipv6_without_brackets or not digits or int(port) > 65_535:
        raise ValueError("must be unix:<path> or <host>:<port>")
    return TcpAddress(host, int(port))


def _checked(text: str) -> str:
    parse_address(text)
    return text


ListenText = Annotated[str, AfterValidator(_checked)]
