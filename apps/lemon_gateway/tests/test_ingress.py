"""The gateway's own ways in, in a real runtime: specification lemon_gateway 6 and 12."""

from __future__ import annotations

import base64
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route

from lemon_core.boot import BootError
from lemon_core.bridges import ROUTER, SubmitResult
from lemon_core.config.ingress import GatewaySms, GatewayVoice, GatewayWebhook
from lemon_core.engine_info import ENGINE_INFO
from lemon_core.runs import RunRequest
from lemon_core.secrets import Secrets
from lemon_core.testing import temp_home
from lemon_gateway.ingress import Surface, SurfaceTransport, UnprotectedBind, credential
from lemon_gateway.tests.booting import booted
from lemon_gateway.transports import GatewayInfo

pytestmark = pytest.mark.anyio

ROW = {"token": "long enough for strangers"}
ON = {"gateway_ingress_enabled": True, "enable_webhook": True, "health_enabled": False}


def with_webhook(**section: object) -> dict[str, object]:
    return {**ON, "webhook": {"port": 0, "integrations": {"ci": ROW}, **section}}


class TakingRouter:
    async def submit_run(self, request: RunRequest) -> SubmitResult:
        return SubmitResult("accepted", request.run_id)


@pytest.mark.behaviour("lemon_gateway.37")
async def test_the_webhook_is_there_when_it_is_switched_on_and_not_before() -> None:
    cases: list[tuple[dict[str, object], tuple[str, ...]]] = [
        ({}, ()),
        ({"enable_webhook": True}, ()),
        ({"gateway_ingress_enabled": True}, ()),
        (with_webhook(), ("webhook",)),
    ]
    for section, expected in cases:
        with temp_home() as paths, anyio.fail_after(10):
            async with booted(paths, section) as (runtime, _):
                info = runtime.capabilities.get(ENGINE_INFO)
                assert isinstance(info, GatewayInfo)
                assert tuple(one.id for one in info.list_transports()) == expected
                assert ("webhook" in runtime.listening) == bool(expected)


async def test_a_switch_without_the_switch_of_all_is_told_of() -> None:
    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths, {"enable_webhook": True}) as (runtime, _):
            assert (
                "gateway.enable_webhook: does nothing without gateway.gateway_ingress_enabled"
                in runtime.warnings
            )
        async with booted(paths, with_webhook(integrations={})) as (runtime, _):
            assert "gateway.webhook: takes nothing without integrations" in runtime.warnings


async def test_a_message_goes_through_a_runtime_to_its_router() -> None:
    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths, with_webhook()) as (runtime, _):
            runtime.capabilities.register(ROUTER, TakingRouter())
            url = f"{runtime.listening['webhook']}/webhooks/ci"
            async with (
                aiohttp.ClientSession() as session,
                session.post(
                    url, json={"text": "hi"}, headers={"X-Webhook-Token": ROW["token"]}
                ) as answer,
            ):
                assert answer.status == 202


async def test_a_one_shot_opens_no_way_in() -> None:
    """DESIGN ruling 22."""
    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths, with_webhook(), serve=False) as (runtime, _):
            assert "webhook" not in runtime.listening


async def test_a_port_that_is_taken_stops_the_start_in_one_line() -> None:
    with (
        temp_home() as paths,
        anyio.fail_after(10),
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        port = taken.getsockname()[1]
        with pytest.raises(BootError) as caught:
            async with booted(paths, with_webhook(port=port)):
                pass
        assert str(caught.value) == (
            f"lemon_gateway did not start: cannot listen on 127.0.0.1:{port} (Address already in "
            "use): set port in [gateway.webhook] to a free port"
        )


@pytest.mark.parametrize(
    ("integrations", "remedy"),
    [
        ({}, "add [gateway.webhook.integrations.<id>] with a token"),
        (
            {"ci": ROW, "bare": {}},
            "set token in [gateway.webhook.integrations.bare] to at least 16 characters",
        ),
        (
            {"ci": {"token": "short"}},
            "set token in [gateway.webhook.integrations.ci] to at least 16 characters",
        ),
    ],
)
@pytest.mark.parametrize("bind", ["any", "::"])
async def test_an_address_for_everybody_without_protection_stops_the_start_in_one_line(
    bind: str, integrations: dict[str, object], remedy: str
) -> None:
    with temp_home() as paths, anyio.fail_after(10):
        with pytest.raises(BootError) as caught:
            async with booted(paths, with_webhook(bind=bind, integrations=integrations)):
                pass
        text = str(caught.value)
        address = {"any": "0.0.0.0"}.get(bind, bind)
        assert text == (
            f"lemon_gateway did not start: [gateway.webhook] bind = '{address}' would take "
            f"messages from anybody: {remedy}, or set bind to 127.0.0.1"
        )


async def test_an_address_for_everybody_is_served_when_every_sender_has_a_token() -> None:
    with temp_home() as paths, anyio.fail_after(10):
        async with booted(paths, with_webhook(bind="0.0.0.0")) as (runtime, _):
            assert runtime.listening["webhook"].startswith("http://0.0.0.0:")


async def test_a_surface_that_fails_is_served_again_on_its_port() -> None:
    tries: list[int] = []

    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Sequence[BaseRoute]]:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("not this time")
        yield (Route("/", hello),)

    transport = SurfaceTransport(
        Surface("test", "gateway.test", "127.0.0.1", 0, opened, unprotected=None)
    )
    transport.listen()
    address = transport.address
    with pytest.raises(RuntimeError):
        await transport.serve()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks, aiohttp.ClientSession() as session:
            tasks.start_soon(transport.serve)
            while len(tries) < 2:
                await anyio.lowlevel.checkpoint()
            async with session.get(f"{address}/") as answer:
                assert await answer.text() == "hello"
            tasks.cancel_scope.cancel()


def test_every_surface_is_for_this_machine_alone_unless_it_says_otherwise() -> None:
    """Specification lemon_gateway 12: bind values."""
    assert GatewayWebhook().bind == GatewaySms().webhook_bind == GatewayVoice().bind == "127.0.0.1"
    for given, used in [(None, "127.0.0.1"), ("localhost", "127.0.0.1"), ("any", "0.0.0.0")]:
        assert GatewayWebhook.model_validate({"bind": given}).bind == used
    with pytest.raises(ValueError, match="must be an IP address, localhost or any"):
        GatewayWebhook.model_validate({"bind": "example.com"})
    with pytest.raises(UnprotectedBind):
        Surface("x", "s", "::", 1, lambda: 1 / 0, unprotected="set it").check_bind()  # type: ignore[arg-type,return-value]
    Surface("x", "s", "::1", 1, lambda: 1 / 0, unprotected="set it").check_bind()  # type: ignore[arg-type,return-value]


async def test_a_credential_is_the_named_secret_then_the_usual_one_then_the_plain_value() -> None:
    """Specification lemon_gateway 12: how secrets resolve."""
    with temp_home() as paths, anyio.fail_after(10):
        paths.state_dir.mkdir(exist_ok=True)
        key = paths.state_dir / "secrets_master_key"
        key.write_text(base64.b64encode(bytes(range(32))).decode())
        key.chmod(0o600)
        async with booted(paths) as (runtime, _):
            secrets: Secrets = runtime.secrets

            async def found(named: str | None = None, plain: str | None = None) -> str:
                return await credential(secrets, named=named, usual="TWILIO_X", plain=plain)

            assert await found() == ""
            assert await found("ABSENT", "plain") == "plain"
            await secrets.set("TWILIO_X", "usual")
            assert await found("ABSENT", "plain") == "usual"
            await secrets.set("MINE", "named")
            assert await found("MINE", "plain") == "named"
