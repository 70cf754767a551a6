"""The connection pool: proxies, ownership, lazy opening."""

from __future__ import annotations

import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from lemon_ai.testing import FakeChatServer
from lemon_ai.transport import Transport, TransportFailure, _failure

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("env", "url", "proxy"),
    [
        ({"HTTPS_PROXY": "http://p:1"}, "https://api.example/v1", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "https://api.example/v1", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://api.example/v1", None),
        ({"ALL_PROXY": "http://p:2"}, "http://api.example/v1", "http://p:2"),
        ({"HTTP_PROXY": "http://p:1"}, "http://127.0.0.1:80/v1", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://localhost:80/v1", None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "x, .example"}, "https://api.example/", None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, "https://api.example/", None),
        (
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "ample"},
            "https://api.example/",
            "http://p:1",
        ),
        ({}, "https://api.example/", None),
    ],
)
def test_the_proxy_of_the_environment(env: dict[str, str], url: str, proxy: str | None) -> None:
    assert Transport(env=env)._proxy_for(url) == proxy


async def test_a_closed_transport_opens_again_and_closes_twice(server: FakeChatServer) -> None:
    transport = Transport(env={})
    await transport.aclose()
    url = f"{server.base_url}/models"
    assert (await transport.get_json(url, {}))[0] == 200
    await transport.aclose()
    assert (await transport.get_json(url, {}))[0] == 200
    await transport.aclose()
    await transport.aclose()


async def test_a_password_in_a_url_is_not_shown() -> None:
    transport = Transport(env={})
    with pytest.raises(TransportFailure) as caught:
        await transport.get_json("http://me:sk-canary@127.0.0.1:1/v1/models", {})
    assert "127.0.0.1:1" in str(caught.value)
    assert "sk-canary" not in str(caught.value)
    await transport.aclose()


async def test_a_name_that_does_not_resolve_is_a_failure_of_its_host() -> None:
    transport = Transport(env={})
    with pytest.raises(TransportFailure, match=r"no-such-host\.invalid"):
        await transport.get_json("http://no-such-host.invalid/v1/models", {})
    await transport.aclose()


async def test_a_server_without_tls_is_a_failure_of_the_connection(server: FakeChatServer) -> None:
    transport = Transport(env={})
    url = server.base_url.replace("http:", "https:")
    with pytest.raises(TransportFailure) as caught:
        await transport.get_json(f"{url}/models", {})
    assert caught.value.error.code == "connection_failed"
    assert caught.value.error.retryable
    await transport.aclose()


def test_an_untrusted_certificate_is_never_retried() -> None:
    key = ConnectionKey("api.example", 443, True, True, None, None, None, None)
    reason = ssl.SSLCertVerificationError()
    reason.verify_message = "self-signed certificate"
    failure = _failure(aiohttp.ClientConnectorCertificateError(key, reason), "api.example")
    assert failure.error.code == "certificate_error"
    assert not failure.error.retryable
    assert "api.example is not trusted: self-signed" in failure.error.message
    assert _failure(TimeoutError(), "h").error.code == "timeout"


def test_a_fault_of_the_program_is_no_transport_failure() -> None:
    with pytest.raises(KeyError):
        _failure(KeyError("x"), "h")
