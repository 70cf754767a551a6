"""Messages in the store: kept by sid, claimed by one session each, removed when they are old."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import anyio.lowlevel

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store import ABSENT, DeleteKey, Store, StoreCorrupt
from lemon_gateway.sms.messages import SmsMessage, newest_first

TABLE: Final = "sms_inbox"
UNKNOWN_SESSION: Final = "unknown"

_PARSED_AT_ONCE: Final = 200

Refused = Literal["mine", "already_claimed", "not_found"]

log = get_logger("lemon_gateway.sms")


class SmsRecords:
    """The table `sms_inbox`. Every method may raise `StoreError`.

    A claim is a compare-and-swap: of the runs on all nodes that share the store, one gets it.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    @property
    def shared(self) -> bool:
        """Whether other nodes write here too."""
        return self._store.shared

    async def put_new(self, message: SmsMessage) -> bool:
        """Store it; False when its sid is known."""
        return await self._store.put_new(TABLE, message.message_sid, message.row())

    async def load(self, message_sid: str) -> SmsMessage | None:
        """The message as it is now."""
        row = await self._store.load(TABLE, message_sid, ABSENT)
        return None if row is ABSENT else SmsMessage.of_row(row)

    async def load_all(self) -> list[SmsMessage]:
        """All messages, newest first; a damaged one is reported and passed over."""
        messages = []
        for count, (sid, row) in enumerate(await self._store.load_all(TABLE), 1):
            if count % _PARSED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()  # a full inbox must not hold the loop
            try:
                messages.append(SmsMessage.of_row(row))
            except StoreCorrupt as exc:
                log.error("sms.message_damaged", message_sid=str(sid), error=str(exc))
        return newest_first(messages)

    async def claim(self, session_key: str, message_sid: str) -> SmsMessage | Refused:
        """The message, the session's from now on; or why it is not. A blank key is `unknown`."""
        session_key = session_key.strip() or UNKNOWN_SESSION
        while True:
            row = await self._store.load(TABLE, message_sid, ABSENT)
            if row is ABSENT:
                return "not_found"
            message = SmsMessage.of_row(row)
            if message.claimed_by is not None:
                return "mine" if message.claimed_by == session_key else "already_claimed"
            now_ms = self._clock.now_ms()
            claimed = replace(message, claimed_by=session_key, claimed_at_ms=now_ms)
            if await self._store.compare_and_swap(TABLE, message_sid, row, claimed.row()):
                return claimed

    async def release(self, claimed: SmsMessage) -> SmsMessage:
        """The message unclaimed again; a record that has changed since stays as it is."""
        free = replace(claimed, claimed_by=None, claimed_at_ms=None)
        await self._store.compare_and_swap(TABLE, claimed.message_sid, claimed.row(), free.row())
        return free

    async def remove_older(self, than_ms: int) -> int:
        """Remove what was received before `than_ms`; how many."""
        gone = [one.message_sid for one in await self.load_all() if one.received_at_ms < than_ms]
        if gone:
            await self._store.transaction([DeleteKey(TABLE, sid) for sid in gone])
        return len(gone)
