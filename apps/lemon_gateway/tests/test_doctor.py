"""`lemon doctor` about the ways in: the issue asks for reachable, signed and safe."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import anyio
import pytest

from lemon_core.testing import temp_home
from lemon_gateway.doctor import webhook
from lemon_gateway.tests.booting import booted
from lemon_gateway.tests.doctoring import doctor_view

pytestmark = pytest.mark.anyio

GOOD = {"token": "long enough for strangers"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def section(row: Mapping[str, object] = GOOD, **webhook: object) -> dict[str, object]:
    return {
        "gateway_ingress_enabled": True,
        "enable_webhook": True,
        "webhook": {"port": 0, "integrations": {"ci": dict(row)}, **webhook},
    }


@pytest.mark.parametrize(
    ("gateway", "status", "words"),
    [
        ({}, "skip", "gateway.enable_webhook is off"),
        ({"enable_webhook": True}, "warn", "does nothing"),
        (section(bind="any"), "pass", "chooses a port"),
        (section({"token": "short"}, bind="any"), "fail", "open to everybody"),
        (section({}), "fail", "'ci' has no token"),
        (section(integrations={}), "fail", "has no integration"),
        (section({"token": "short"}), "warn", "the token of 'ci' is short"),
        (section({**GOOD, "policy": "full_access"}), "warn", "may run commands"),
        (section({**GOOD, "policy": {"allow": ["execute_code"]}}), "warn", "may run commands"),
        (section({**GOOD, "policy": "safe_mode"}), "pass", "chooses a port"),
        (section({**GOOD, "mode": "sync"}), "warn", "your own conversation"),
        (section(callback_url="https://x.example/"), "warn", "your own conversation"),
        (
            section({**GOOD, "mode": "sync", "session_key": "agent:default:main:sub:ci"}),
            "pass",
            "chooses a port",
        ),
        (section({**GOOD, "allow_query_token": True}), "warn", "in the URL"),
        (section(allow_query_token=True), "warn", "in the URL"),
        (
            section(allow_callback_override=True, allow_private_callback_hosts=True),
            "warn",
            "any address of its network",
        ),
    ],
)
async def test_what_is_configured_is_judged_without_a_server(
    gateway: dict[str, object], status: str, words: str
) -> None:
    with temp_home() as paths, anyio.fail_after(5):
        found = await webhook(doctor_view(paths, gateway))
    assert (found.status, words in found.message) == (status, True), found
    assert (found.remediation is None) == (status in ("pass", "skip"))


async def test_a_port_is_told_from_another_program_and_from_a_server_that_does_not_answer() -> None:
    port = free_port()
    with temp_home() as paths, anyio.fail_after(10):
        seen = doctor_view(paths, section(port=port))
        found = await webhook(seen)
        assert (found.status, found.message) == (
            "pass",
            f"configured for 127.0.0.1:{port}; Lemon is not running",
        )
        off = {"health_enabled": False, "gateway_ingress_enabled": False}
        async with booted(paths, off):
            found = await webhook(seen)
            assert found.status == "warn"
            assert f"nothing answers on 127.0.0.1:{port}" in found.message
        async with booted(paths, {**section(port=port), "health_enabled": False}):
            found = await webhook(seen)
            assert (found.status, found.message) == ("pass", f"127.0.0.1:{port} answers")
        with socket.create_server(("127.0.0.1", port)):
            found = await webhook(seen)
            assert (found.status, "another program" in found.message) == ("fail", True)
