"""Certificates are read and checked before anything listens or connects (lemon_gateway 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lemon_core.paths import PathSettings
from lemon_core.rpc.auth import CertificateAuthenticator, Peer, TokenRow
from lemon_core.rpc.status import Unauthenticated
from lemon_core.rpc.tls import (
    ClientTls,
    ServerTls,
    TlsUnusable,
    load_client_tls,
    load_server_tls,
)
from lemon_core.testing.certificates import Authority
from lemon_core.tool_policy import ToolPolicy

AUTHORITY = Authority()
SAFE_MODE = ToolPolicy.of_profile("safe_mode")


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    """A home with an authority, a server's pair and a client's."""
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.cert)
    AUTHORITY.server().write(tmp_path, "server")
    AUTHORITY.client("desk").write(tmp_path, "client")
    (tmp_path / "text.pem").write_text("no certificate")
    return PathSettings(tmp_path)


def test_a_server_s_material_is_what_the_files_hold(paths: PathSettings) -> None:
    loaded = load_server_tls(
        "~/server.pem", "~/server.key", "~/ca.pem", paths, "gateway.rpc", names_peers=True
    )
    cert, key = ((paths.home / name).read_bytes() for name in ("server.pem", "server.key"))
    assert loaded == ServerTls(cert, key, AUTHORITY.cert, names_peers=True)
    assert "PRIVATE" not in repr(loaded)
    with pytest.raises(ValueError, match="authority"):
        ServerTls(cert, key, names_peers=True)


def test_a_client_has_nothing_an_authority_or_both(paths: PathSettings) -> None:
    name = "router.engine_tls"
    assert load_client_tls(None, None, None, paths, name) is None
    assert load_client_tls("~/ca.pem", None, None, paths, name) == ClientTls(AUTHORITY.cert)
    whole = load_client_tls("~/ca.pem", "~/client.pem", "~/client.key", paths, name)
    cert, key = ((paths.home / name).read_bytes() for name in ("client.pem", "client.key"))
    assert whole == ClientTls(AUTHORITY.cert, cert, key)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda p: _server("~/none.pem", "~/server.key", None, p), "tls_cert.*none.pem.*No such"),
        (lambda p: _server("~/server.pem", "~/none.key", None, p), "tls_key.*none.key.*No such"),
        (lambda p: _server("~/server.pem", "~/client.key", None, p), "tls_cert.*key values mism"),
        (lambda p: _server("~/text.pem", "~/server.key", None, p), "tls_cert.*does not go with"),
        (lambda p: _server("~/server.pem", "~/server.key", "~/text.pem", p), "tls_client_ca.*PEM"),
        (lambda p: _client("~/none.pem", None, None, p), "engine_tls_ca.*No such"),
        (lambda p: _client(None, "~/client.pem", None, p), "engine_tls_key.*other half"),
        (lambda p: _client(None, None, "~/client.key", p), "engine_tls_cert.*other half"),
    ],
)
def test_what_cannot_be_used_is_named(
    paths: PathSettings, load: Callable[[PathSettings], object], message: str
) -> None:
    with pytest.raises(TlsUnusable, match=message):
        load(paths)


def _server(cert: str, key: str, ca: str | None, paths: PathSettings) -> ServerTls:
    return load_server_tls(cert, key, ca, paths, "gateway.rpc", names_peers=False)


def _client(
    ca: str | None, cert: str | None, key: str | None, paths: PathSettings
) -> ClientTls | None:
    return load_client_tls(ca, cert, key, paths, "router.engine_tls")


def test_the_name_in_a_certificate_is_the_peer() -> None:
    row = TokenRow("desk", scopes=frozenset({"admin"}), policy=ToolPolicy.full_access())
    authenticator = CertificateAuthenticator([row])
    common, other = "x509_common_name", "x509_subject_alternative_name"
    desk = Peer("desk", frozenset({"admin"}), None, ToolPolicy.full_access(), local=False)
    stranger = Peer("else", frozenset({"runs"}), None, SAFE_MODE, local=False)
    assert authenticator.peer((), lambda: {common: [b"desk"], other: [b"else"]}) == desk
    assert authenticator.peer((), lambda: {other: [b"desk"]}) == desk
    assert authenticator.peer((), lambda: {common: [b"else"], other: [b"desk"]}) == stranger
    token = [("authorization", "Bearer desk")]
    assert authenticator.peer(token, lambda: {common: [b"else"]}) == stranger
    with pytest.raises(Unauthenticated):
        authenticator.peer(token)
    with pytest.raises(Unauthenticated):
        authenticator.peer(token, lambda: {common: [b""]})
