"""Who may open a media stream, and who called."""

from __future__ import annotations

from itertools import count

from lemon_core.testing import FakeClock
from lemon_gateway.voice.calls import MAX_CALLERS, MAX_TICKETS, TICKET_MS, Calls, Ticket

TICKET = Ticket("CA1", "+1555", "+1666", "https://lemon.example")


async def test_a_token_opens_one_stream() -> None:
    """Specification lemon_gateway 8: a one-use stream token."""
    calls = Calls(FakeClock())
    token = calls.admit(TICKET)
    assert len(token) >= 32
    assert calls.redeem(token) == TICKET
    assert calls.redeem(token) is None
    assert calls.redeem("") is None


async def test_a_token_gets_old() -> None:
    """A token that was overheard somewhere is worth nothing for long."""
    clock = FakeClock()
    calls = Calls(clock)
    young, old = calls.admit(TICKET), calls.admit(TICKET)
    await clock.advance(TICKET_MS)
    assert calls.redeem(young) == TICKET
    await clock.advance(1)
    assert calls.redeem(old) is None


def test_tokens_that_nobody_uses_fill_no_memory() -> None:
    """The oldest go first."""
    numbers = count()
    calls = Calls(FakeClock(), lambda: f"t{next(numbers)}")
    tokens = [calls.admit(TICKET) for _ in range(MAX_TICKETS + 1)]
    assert calls.redeem(tokens[0]) is None
    assert calls.redeem(tokens[1]) == TICKET


def test_a_call_has_one_stream() -> None:
    """Specification lemon_gateway 8: one session per call sid."""
    calls = Calls(FakeClock())
    assert calls.begin("CA1", "+1555")
    assert not calls.begin("CA1", "+1777")
    assert calls.live == {"CA1"}
    calls.end("CA1")
    assert calls.live == frozenset()


def test_the_caller_is_known_for_a_while_after_the_call() -> None:
    """Specification lemon_gateway 8: a recording tells no number."""
    calls = Calls(FakeClock())
    calls.begin("CA1", "+1555")
    calls.end("CA1")
    assert calls.caller_of("CA1") == "+1555"
    assert calls.caller_of("CA2") is None
    for number in range(MAX_CALLERS):
        calls.begin(f"other{number}", "+1")
    assert calls.caller_of("CA1") is None
