"""`POST /webhooks/twilio/sms`: the surface through which Twilio delivers messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from lemon_core.logs import get_logger
from lemon_core.runtime import Runtime as CoreRuntime
from lemon_core.supervisor import Supervisor
from lemon_gateway.ingress import Surface, credential
from lemon_gateway.ingress_limits import Limits
from lemon_gateway.sms.inbox import Inbox
from lemon_gateway.sms.records import SmsRecords
from lemon_gateway.sms.security import SECTION, TOKEN_NAME, SmsSecurity
from lemon_gateway.sms.tools import TOOL_NAMES, sms_tools
from lemon_gateway.tools import GatewayTools
from lemon_gateway.twilio_signature import Arrival, Fields, form_fields

PATH: Final = "/webhooks/twilio/sms"
# A message has 1,600 characters at most, and a form up to twelve bytes for each.
BODY_BYTES: Final = 65_536
# Says that nothing is to be sent back.
EMPTY_ANSWER: Final = "<Response></Response>"
log = get_logger("lemon_gateway.sms")


async def surface(runtime: CoreRuntime) -> Surface:
    """The surface of `[gateway.sms]`, not listening yet. Raises `SecretsError`."""
    section = runtime.config.gateway.sms
    token = await credential(
        runtime.secrets,
        named=section.auth_token_secret,
        usual=TOKEN_NAME,
        plain=section.auth_token,
    )
    security = SmsSecurity(token, section.webhook_url, section.validate_webhook)
    inbox = Inbox(
        SmsRecords(runtime.store, runtime.clock),
        runtime.clock,
        ttl_ms=section.inbox_ttl_ms,
        number=section.inbox_number,
    )
    for name in TOOL_NAMES:
        runtime.tool_classes.classify(name, ("external",))
    if (text := security.warning) is not None:
        log.warning("sms.unsafe", problem=text)
        runtime.warnings = (*runtime.warnings, text)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Sequence[BaseRoute]]:
        """The inbox at work, its tools offered."""
        tools = runtime.service(GatewayTools.of)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Supervisor(runtime.clock).run, "sms_inbox", inbox.serve)
            tools.offer("sms", lambda session_key, _: sms_tools(inbox, session_key))
            try:
                yield (Route(PATH, Endpoint(inbox, security).answer, methods=["POST"]),)
            finally:
                tools.withdraw("sms")
                tasks.cancel_scope.cancel()

    return Surface(
        id="sms",
        section=SECTION,
        bind=section.webhook_bind,
        port=section.webhook_port,
        opened=opened,
        unprotected=security.unprotected,
        bind_key="webhook_bind",
        port_key="webhook_port",
        limits=Limits(body_bytes=BODY_BYTES),
    )


class Endpoint:
    """Takes deliveries for `inbox`."""

    def __init__(self, inbox: Inbox, security: SmsSecurity) -> None:
        self._inbox, self._security = inbox, security

    async def answer(self, request: Request) -> Response:
        """401 for what is not signed; else 200, whatever becomes of the message."""
        arrival = Arrival.of(request)
        fields = _fields(await request.body())
        reason = self._security.refusal_of(arrival, fields)
        if reason is not None:
            log.warning("sms.refused", reason=reason)
            return JSONResponse({"error": "unauthorized"}, status_code=401)
        await self._take(fields)
        return Response(EMPTY_ANSWER, media_type="application/xml")

    async def _take(self, fields: Fields) -> None:
        try:
            outcome = await self._inbox.ingest(fields)
        except Exception:  # an error answer would help nobody: Twilio does not deliver again
            log.exception("sms.ingest_failed")
        else:
            log.info("sms.received", outcome=outcome)


def _fields(body: bytes) -> Fields:
    try:
        return form_fields(body)
    except ValueError:
        return ()  # more fields than a message has: not signed, and no message
