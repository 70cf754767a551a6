"""Which calls may open a media stream, which ones have, and who called.

A stream token is made for one call when its first request came with Twilio's signature, and opens
one stream: the socket itself carries no signature. Both tables are bounded and forget.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lemon_core.clock import Clock

TICKET_MS: Final = 120_000
MAX_TICKETS: Final = 1_000
MAX_CALLERS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Ticket:
    """What was known of a call when it was let in; `base_url` is how the service reaches us."""

    call_sid: str
    caller: str
    callee: str
    base_url: str


class Calls:
    """The calls of one server."""

    def __init__(self, clock: Clock, make_token: Callable[[], str] = secrets.token_urlsafe) -> None:
        self._clock, self._make_token = clock, make_token
        self._tickets: OrderedDict[str, tuple[Ticket, int]] = OrderedDict()
        self._callers: OrderedDict[str, str] = OrderedDict()
        self._live: set[str] = set()

    @property
    def live(self) -> frozenset[str]:
        """The sids of the calls that are being talked on."""
        return frozenset(self._live)

    def admit(self, ticket: Ticket) -> str:
        """The token with which the call may open its stream, once and within two minutes."""
        while len(self._tickets) >= MAX_TICKETS:
            self._tickets.popitem(last=False)
        token = self._make_token()
        self._tickets[token] = (ticket, self._clock.monotonic_ms() + TICKET_MS)
        return token

    def redeem(self, token: str) -> Ticket | None:
        """The ticket of a token, which is worth nothing afterwards; None for any other text."""
        found = self._tickets.pop(token, None)
        if found is None or self._clock.monotonic_ms() > found[1]:
            return None
        return found[0]

    def begin(self, call_sid: str, caller: str) -> bool:
        """Take the call as live; False when it is: a second stream must not change that."""
        if call_sid in self._live:
            return False
        self._live.add(call_sid)
        self._callers[call_sid] = caller
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return True

    def end(self, call_sid: str) -> None:
        """The call is over; who called is known for a while, since recordings come later."""
        self._live.discard(call_sid)

    def caller_of(self, call_sid: str) -> str | None:
        """The number of a call, live or not long over."""
        return self._callers.get(call_sid)
