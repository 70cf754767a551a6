"""An inbox at work on a store, for the tests of the SMS surface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from lemon_core.clock import Clock
from lemon_core.store import Store
from lemon_gateway.sms.inbox import Inbox
from lemon_gateway.sms.records import SmsRecords
from lemon_gateway.twilio_signature import Fields

NUMBER = "+15550001111"
SENDER = "+15552223333"
TTL_MS = 86_400_000


def delivery(sid: str, body: str, *, to: str = NUMBER, sender: str = SENDER) -> Fields:
    """The form that Twilio posts for a message."""
    return (
        ("ToCountry", "US"),
        ("MessageSid", sid),
        ("SmsMessageSid", sid),
        ("AccountSid", "AC1"),
        ("From", sender),
        ("To", to),
        ("Body", body),
        ("NumMedia", "0"),
    )


@asynccontextmanager
async def serving_inbox(
    store: Store, clock: Clock, *, number: str | None = NUMBER
) -> AsyncIterator[Inbox]:
    """An inbox that hands out, for at most as long as a test may take."""
    inbox = Inbox(SmsRecords(store, clock), clock, ttl_ms=TTL_MS, number=number)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(inbox.serve)
            try:
                yield inbox
            finally:
                tasks.cancel_scope.cancel()
