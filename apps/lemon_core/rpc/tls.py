"""Certificates of servers and clients, read and checked before anything listens or connects."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings

_NO_PASSWORD: Final = ""


class TlsUnusable(LemonError):
    """A certificate, a key or an authority cannot be used; the message names key and file."""

    code = "tls_unusable"

    def __init__(self, key: str, path: Path, reason: str) -> None:
        super().__init__(f"{key}: {path}: {reason}")
        self.key, self.path = key, path


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a server shows, and the authority that signed the certificates of its peers.

    With `client_ca` nobody connects without such a certificate; `names_peers` says that its name,
    and no token, is who the peer is. All three are PEM.
    """

    cert: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client_ca: bytes | None = field(default=None, repr=False)
    names_peers: bool = False

    def __post_init__(self) -> None:
        if self.names_peers and not self.client_ca:
            raise ValueError("peers are named by certificates only with an authority for them")


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client trusts (`ca`, None: what this machine trusts) and the certificate it shows."""

    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


def load_server_tls(
    cert: str, key: str, client_ca: str | None, paths: PathSettings, name: str, *, names_peers: bool
) -> ServerTls:
    """The material in the files of the section called `name`; raises `TlsUnusable`."""
    pair = _load_pair(paths.expand(cert), paths.expand(key), f"{name}.tls_cert", f"{name}.tls_key")
    ca = None
    if client_ca is not None:
        ca = _load_ca(paths.expand(client_ca), f"{name}.tls_client_ca")
    return ServerTls(*pair, ca, names_peers)


def load_client_tls(
    ca: str | None, cert: str | None, key: str | None, paths: PathSettings, name: str
) -> ClientTls | None:
    """The material in the files named by `<name>_ca`, `<name>_cert` and `<name>_key`.

    None when no file is named. Raises `TlsUnusable`.
    """
    if ca is None and cert is None and key is None:
        return None
    trusted = None if ca is None else _load_ca(paths.expand(ca), f"{name}_ca")
    if cert is None or key is None:
        if cert or key:
            missing, there = ("key", cert) if cert else ("cert", key)
            there_path = paths.expand(there or "")
            raise TlsUnusable(f"{name}_{missing}", there_path, "needs its other half")
        return ClientTls(trusted)
    pair = _load_pair(paths.expand(cert), paths.expand(key), f"{name}_cert", f"{name}_key")
    return ClientTls(trusted, *pair)


def _load_pair(cert: Path, key: Path, cert_name: str, key_name: str) -> tuple[bytes, bytes]:
    pair = _read(cert, cert_name), _read(key, key_name)
    try:
        # Without the password that it is given here, openssl would ask for one on the terminal.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, password=lambda: _NO_PASSWORD)
    except (ssl.SSLError, OSError, ValueError) as exc:
        raise TlsUnusable(cert_name, cert, f"does not go with the key {key} ({_why(exc)})") from exc
    return pair


def _load_ca(path: Path, name: str) -> bytes:
    data = _read(path, name)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as exc:
        raise TlsUnusable(name, path, f"holds no certificate in PEM ({_why(exc)})") from exc
    return data


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise TlsUnusable(name, path, exc.strerror or type(exc).__name__) from exc


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or type(error).__name__).lower().replace("_", " ")
