"""The inbox: messages that come in, and who waits for a code.

A message is stored before anybody hears of it, so that a crash in between loses nothing: whoever
asks next finds it. One task hands messages to waiters, one after the other, and so a message goes
to one waiter, the first in line that it fits. A waiter that goes away while its claim is written
has its claim undone, and the message is offered to the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import anyio

from lemon_core.clock import Clock, within
from lemon_core.logs import get_logger
from lemon_core.store import StoreCorrupt, StoreError
from lemon_gateway.sms.messages import MessageFilter, SmsMessage
from lemon_gateway.sms.pattern import CodeRule, UnfitPattern, rule_for
from lemon_gateway.sms.records import SmsRecords
from lemon_gateway.twilio_signature import Fields

WAIT_MS: Final = 60_000
MAX_WAIT_MS: Final = 600_000
MAX_WAITERS: Final = 64
LIST_LIMIT: Final = 20
CLEANUP_INTERVAL_MS: Final = 600_000
# Other nodes that share the store take messages of which nobody here is told.
LOOK_AGAIN_MS: Final = 2_000
RETRY_MS: Final = 1_000
# How long the stored messages may take to be looked through for a new waiter.
LOOK_LIMIT_MS: Final = 10_000
MAX_UNFIT_MATCHES: Final = 5
_PATTERN_THREADS: Final = 2

Ingested = Literal["stored", "duplicate", "missing_message_sid"]
Claimed = Literal["ok", "already_claimed", "not_found"]
WaitFailure = Literal["timeout", "pattern_too_slow", "too_many_waiters", "unavailable"]

log = get_logger("lemon_gateway.sms")


@dataclass(frozen=True, slots=True)
class Code:
    """What a waiter gets."""

    code: str
    message: SmsMessage


Outcome = Code | WaitFailure


@dataclass(eq=False, slots=True)
class _Waiter:
    """A caller of `wait_for_code`.

    `seen` are the messages that do not fit it or went to somebody else. It `is_new` while the
    stored messages have to be looked through for it, and has `looked` once that was done.
    """

    session_key: str
    asks: MessageFilter
    pattern: str | None
    claim: bool
    rule: CodeRule | None = None
    seen: set[str] = field(default_factory=set)
    unfit_count: int = 0
    is_new: bool = True
    is_gone: bool = False
    outcome: Outcome | None = None
    looked: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)

    # A method, because the answer changes during an await and a narrowed property would hide that.
    def is_over(self) -> bool:
        return self.is_gone or self.outcome is not None

    def end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.looked.set()
        self.ended.set()


class Inbox:
    """The messages of one store; `serve` has to run for anybody to be served.

    `number` is the number that callers wait on when they name none; None is any.
    """

    def __init__(
        self, records: SmsRecords, clock: Clock, *, ttl_ms: int, number: str | None = None
    ) -> None:
        self._records, self._clock, self._ttl_ms = records, clock, ttl_ms
        self.number = number
        self._waiters: list[_Waiter] = []
        self._arrived: deque[SmsMessage] = deque()
        self._unheard: deque[SmsMessage] = deque()
        self._wake = anyio.Event()
        self._threads = anyio.CapacityLimiter(_PATTERN_THREADS)

    @property
    def waiter_count(self) -> int:
        """How many callers wait for a code."""
        return len(self._waiters)

    # --- messages ---

    async def ingest(self, fields: Fields) -> Ingested:
        """Store a delivery and have its waiter served; a known sid changes nothing.

        Raises `StoreError`.
        """
        message = SmsMessage.of_fields(fields, self._clock.now_ms())
        if message is None:
            return "missing_message_sid"
        if not await self._records.put_new(message):
            return "duplicate"
        self._arrived.append(message)
        self._wake.set()
        return "stored"

    async def list_messages(
        self,
        asks: MessageFilter | None = None,
        *,
        include_claimed: bool = False,
        claimed_by: str | None = None,
        limit: int = LIST_LIMIT,
    ) -> list[SmsMessage]:
        """What `asks` takes, newest first; with `claimed_by` that session's only.

        Raises `StoreError`.
        """
        asks = asks or MessageFilter()
        found = [
            message
            for message in await self._records.load_all()
            if asks.takes(message)
            and (include_claimed or message.claimed_by is None)
            and (claimed_by is None or message.claimed_by == claimed_by)
        ]
        return found[: max(limit, 0)]

    async def claim_message(self, session_key: str, message_sid: str) -> Claimed:
        """Make the message the session's; `ok` also when it was already. Raises `StoreError`."""
        found = await self._records.claim(session_key, message_sid)
        return "ok" if isinstance(found, SmsMessage) or found == "mine" else found

    async def clean_up(self) -> int:
        """Remove messages older than the time to live; how many. Raises `StoreError`."""
        return await self._records.remove_older(self._clock.now_ms() - self._ttl_ms)

    # --- codes ---

    async def wait_for_code(
        self,
        session_key: str,
        *,
        timeout_ms: int = WAIT_MS,
        asks: MessageFilter | None = None,
        pattern: str | None = None,
        claim: bool = True,
    ) -> Outcome:
        """The code of the newest stored message that fits and is unclaimed, else of the next one.

        `asks` without a `to` means the inbox's own number. A pattern that cannot be used gives way
        to the default rule. The message becomes the session's, unless `claim` is off.
        """
        asks = asks or MessageFilter()
        if asks.to is None:
            asks = replace(asks, to=self.number)
        if len(self._waiters) >= MAX_WAITERS:
            return "too_many_waiters"
        waiter = _Waiter(session_key, asks, pattern, claim)
        self._waiters.append(waiter)
        self._wake.set()
        try:
            return await self._outcome(waiter, timeout_ms)
        except anyio.get_cancelled_exc_class():
            if isinstance(waiter.outcome, Code):
                self._take_back(waiter.outcome.message)
            raise
        finally:
            waiter.is_gone = True
            self._waiters.remove(waiter)

    async def _outcome(self, waiter: _Waiter, timeout_ms: int) -> Outcome:
        failure: WaitFailure = "unavailable"
        try:
            await within(self._clock, LOOK_LIMIT_MS, waiter.looked.wait)
            failure = "timeout"
            if waiter.outcome is None:
                await within(self._clock, min(timeout_ms, MAX_WAIT_MS), waiter.ended.wait)
        except TimeoutError:
            # Set, so that nothing more is handed out; what was handed out just now counts.
            waiter.outcome = waiter.outcome or failure
        return waiter.outcome or failure

    # --- the one task that hands out ---

    async def serve(self) -> None:
        """Hand messages to waiters and remove old ones, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve_clean_up)
            if self._records.shared:
                tasks.start_soon(self._serve_other_nodes)
            while True:
                self._wake = anyio.Event()
                await self._hand_out()
                await self._wake.wait()

    async def _hand_out(self) -> None:
        """Everything that can be handed out now; what the store refuses is tried again."""
        while True:
            try:
                if not await self._step():
                    return
            except StoreError as exc:
                log.error("sms.hand_out_failed", error=str(exc))
                for waiter in self._waiters:
                    if not waiter.looked.is_set():
                        waiter.end("unavailable")
                await self._clock.sleep(RETRY_MS)

    async def _step(self) -> bool:
        """One message offered, or one waiter looked after; False when there is nothing to do."""
        if self._unheard:
            self._arrived.appendleft(await self._records.release(self._unheard[0]))
            self._unheard.popleft()
        elif self._arrived:
            await self._offer(self._arrived[0])
            self._arrived.popleft()
        elif (waiter := next((one for one in self._waiters if one.is_new), None)) is not None:
            await self._look(waiter)
        else:
            return False
        return True

    async def _offer(self, message: SmsMessage) -> None:
        """Give a message that has just come to the first in line that it fits."""
        for waiter in tuple(self._waiters):
            if not waiter.is_new and await self._served(waiter, message):
                return

    async def _look(self, waiter: _Waiter) -> None:
        """Give a waiter the newest stored message that fits it."""
        if waiter.rule is None:
            waiter.rule = await rule_for(waiter.pattern, self._threads)
        for message in await self._records.load_all():
            if message.claimed_by is None and await self._served(waiter, message):
                break
        waiter.is_new = False
        waiter.looked.set()

    async def _served(self, waiter: _Waiter, message: SmsMessage) -> bool:
        """Whether the message is used up: the waiter has it, or somebody else does."""
        if waiter.is_over() or message.message_sid in waiter.seen:
            return False
        code = await self._code(waiter, message)
        taken = None if code is None or waiter.is_over() else await self._taken(waiter, message)
        # Only now: a store that failed in between must not hide the message from its waiter.
        waiter.seen.add(message.message_sid)
        if code is None or taken is None:
            return False
        if waiter.is_over():  # it went while its claim was written
            self._take_back(taken)
            return waiter.claim
        for other in self._waiters:
            other.seen.add(message.message_sid)
        waiter.end(Code(code, taken))
        return True

    async def _taken(self, waiter: _Waiter, message: SmsMessage) -> SmsMessage | None:
        """The message for the waiter; None when somebody else has it by now."""
        try:
            if waiter.claim:
                claimed = await self._records.claim(waiter.session_key, message.message_sid)
                return claimed if isinstance(claimed, SmsMessage) else None
            current = await self._records.load(message.message_sid)
        except StoreCorrupt as exc:  # it would be damaged at every further try too
            log.error("sms.message_damaged", message_sid=message.message_sid, error=str(exc))
            return None
        return current if current is not None and current.claimed_by is None else None

    async def _code(self, waiter: _Waiter, message: SmsMessage) -> str | None:
        if waiter.rule is None or not waiter.asks.takes(message):
            return None
        try:
            return await waiter.rule.code_of(message)
        except UnfitPattern:
            # Any sender can make a body on which a harmless pattern is slow: one such message is
            # passed over, but a pattern that is slow on all of them ends its wait.
            waiter.unfit_count += 1
            log.warning("sms.pattern_unfit", match_count=waiter.unfit_count)
            if waiter.unfit_count >= MAX_UNFIT_MATCHES and not waiter.is_over():
                waiter.end("pattern_too_slow")
            return None

    def _take_back(self, message: SmsMessage) -> None:
        """Have a claim undone that nobody has heard of, and the message offered to the others."""
        if message.claimed_by is not None:
            self._unheard.append(message)
            self._wake.set()

    # --- schedules ---

    async def _serve_clean_up(self) -> None:
        while True:
            try:
                await self.clean_up()
            except StoreError as exc:
                log.error("sms.clean_up_failed", error=str(exc))
            await self._clock.sleep(CLEANUP_INTERVAL_MS)

    async def _serve_other_nodes(self) -> None:
        while True:
            await self._clock.sleep(LOOK_AGAIN_MS)
            for waiter in self._waiters:
                waiter.is_new = True
            if self._waiters:
                self._wake.set()
