"""The gRPC sections (specification lemon_gateway 5.4, 12)."""

from __future__ import annotations

import pytest

from lemon_core.config.listen import TcpAddress, UnixAddress, parse_address
from lemon_core.config.rpc import GatewayRpc, RouterRpc, RpcSection
from lemon_core.tool_policy import ToolPolicy

TOKEN = {"id": "desk", "secret": "DESK_TOKEN"}
TLS = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}
MUTUAL = {**TLS, "tls_client_ca": "/ca.pem"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/lemon.sock", UnixAddress("/run/lemon.sock")),
        ("unix:~/.lemon/run/gateway.sock", UnixAddress("~/.lemon/run/gateway.sock")),
        ("127.0.0.1:0", TcpAddress("127.0.0.1", 0)),
        ("[::1]:50", TcpAddress("::1", 50)),
        ("gateway.example:65535", TcpAddress("gateway.example", 65_535)),
    ],
)
def test_addresses(text: str, address: object) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "unix:run.sock", "localhost", ":80", "a:65536", "a:-1", "a:x", "::1:50", "a:¹"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_address(text)


def test_who_can_reach_an_address() -> None:
    loopback = ["127.0.0.1:1", "[::1]:1", "localhost:1"]
    others = ["0.0.0.0:1", "10.0.0.1:1", "example.org:1"]
    assert all(is_loopback(text) for text in loopback)
    assert not any(is_loopback(text) for text in others)
    assert str(parse_address("[::1]:1")) == "[::1]:1"


def is_loopback(text: str) -> bool:
    address = parse_address(text)
    assert isinstance(address, TcpAddress)
    return address.is_loopback


def test_the_sockets_are_the_defaults() -> None:
    gateway, router = GatewayRpc(), RouterRpc()
    assert gateway.address == UnixAddress("~/.lemon/run/gateway.sock")
    assert router.address == UnixAddress("~/.lemon/run/router.sock")
    for section in (gateway, router):
        assert not section.enabled
        assert section.effective_auth == "none"
        assert section.problems() == []


def test_a_token_without_a_policy_is_in_safe_mode() -> None:
    section = GatewayRpc.model_validate(
        {
            "tokens": [
                TOKEN,
                {**TOKEN, "id": "a", "policy": "read_only", "scopes": ["runs", "admin"]},
                {**TOKEN, "id": "b", "policy": {"deny": ["bash"]}, "origins": ["cli"]},
            ]
        }
    )
    plain, profile, fields = section.tokens
    assert plain.policy == ToolPolicy.of_profile("safe_mode")
    assert (plain.scopes, plain.origins) == (("runs",), None)
    assert profile.policy == ToolPolicy.of_profile("read_only")
    assert profile.scopes == ("runs", "admin")
    assert fields.policy == ToolPolicy.parse({"deny": ["bash"]})
    assert fields.origins == ("cli",)


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"listen": "127.0.0.1:1", "tokens": [TOKEN]}, []),
        ({"listen": "127.0.0.1:1"}, ["tokens"]),
        ({"listen": "127.0.0.1:1", "auth": "none", "tokens": [TOKEN]}, ["auth"]),
        ({"listen": "0.0.0.0:1", "tokens": [TOKEN]}, ["listen"]),
        ({"listen": "0.0.0.0:1", "tokens": [TOKEN], **TLS}, []),
        ({"listen": "0.0.0.0:1", "auth": "mtls", **TLS}, ["auth"]),
        ({"listen": "0.0.0.0:1", "auth": "mtls", "tls_client_ca": "/ca.pem", **TLS}, []),
        ({"listen": "127.0.0.1:1", "tokens": [{"id": "desk"}]}, ["tokens"]),
        ({"tokens": [{"id": "desk"}]}, ["tokens"]),
        ({"listen": "127.0.0.1:1", "auth": "mtls", "tokens": [{"id": "desk"}], **MUTUAL}, []),
        ({"tls_cert": "/c.pem"}, ["tls_key"]),
        ({"tls_key": "/k.pem"}, ["tls_cert"]),
        ({"tokens": [TOKEN, TOKEN]}, ["tokens"]),
        ({"auth": "token", "tokens": [TOKEN]}, []),
    ],
)
def test_what_has_to_fit_together(fields: dict[str, object], keys: list[str]) -> None:
    section: RpcSection = GatewayRpc.model_validate(fields)
    assert [key for key, _ in section.problems()] == keys
