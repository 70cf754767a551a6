"""Media streams: who is let in, and which call it is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lemon_core.testing import FakeClock
from lemon_gateway.tests.fakes import settle
from lemon_gateway.tests.voice_parts import BASE_URL, PAYLOAD, TICKET, serving, start
from lemon_gateway.tests.voice_servers import sound_of
from lemon_gateway.voice.calls import Calls, Ticket
from lemon_gateway.voice.stream import ADMISSION_MS


async def test_a_token_in_the_start_lets_the_call_in() -> None:
    """Specification lemon_gateway 8: the token arrives in `start.customParameters`."""
    async with serving() as line:
        line.socket.put({"event": "connected", "protocol": "Call"})
        await line.open()
        assert line.calls.live == {"CA1"}
        assert line.parts.recorded == ["CA1"]
        assert line.parts.base_urls == [BASE_URL]
        assert line.calls.caller_of("CA1") == "+15551230001"


@pytest.mark.parametrize("parameters", [{}, {"token": ""}, {"token": "guessed"}])
async def test_without_the_right_token_nothing_is_done(parameters: Mapping[str, str]) -> None:
    """Specification lemon_gateway 8: no session is made before the token is right."""
    async with serving() as line:
        line.calls.admit(TICKET)
        line.socket.put({"event": "media", "media": {"payload": PAYLOAD}})
        line.socket.put(start(**parameters))
        await line.ended.wait()
        assert line.socket.close_code == 1008
        assert line.socket.outbox.empty()
        assert line.parts.base_urls == []
        assert line.calls.live == frozenset()


async def test_a_token_is_worth_nothing_the_second_time() -> None:
    """Specification lemon_gateway 8: one-use."""
    calls = Calls(FakeClock())
    token = calls.admit(TICKET)
    assert calls.redeem(token) is not None
    async with serving(calls=calls) as line:
        line.socket.put(start(token=token))
        await line.ended.wait()
        assert line.socket.close_code == 1008


async def test_a_socket_that_does_not_say_who_it_is_is_closed_after_ten_seconds() -> None:
    """Specification lemon_gateway 8: 10 s, then close; other frames do not help."""
    async with serving() as line:
        await line.clock.wait_for_sleepers()
        await line.clock.advance(ADMISSION_MS - 1)
        line.socket.put({"event": "media", "media": {"payload": PAYLOAD}})
        await settle()
        assert not line.ended.is_set()
        await line.clock.advance(1)
        await line.ended.wait()
        assert line.socket.close_code == 1008
        assert line.parts.base_urls == []


async def test_a_socket_that_is_gone_before_it_says_anything_is_over() -> None:
    """Specification lemon_gateway 8: nothing is left of it."""
    async with serving() as line:
        line.socket.put(None)
        await line.ended.wait()


async def test_a_second_stream_of_a_live_call_is_refused() -> None:
    """Specification lemon_gateway 8: one per call sid; the first goes on."""
    async with serving() as line:
        await line.open()
        async with serving(calls=line.calls) as second:
            second.socket.put(start(token=line.calls.admit(TICKET)))
            await second.ended.wait()
            assert second.socket.outbox.empty()
        assert line.calls.live == {"CA1"}
        assert not line.ended.is_set()


# --- names ---


@pytest.mark.behaviour("lemon_gateway.34")
async def test_a_provisional_sid_is_replaced_by_the_streams_own() -> None:
    """Specification lemon_gateway 8: a `temp_` sid; nothing is sent before `streamSid`."""
    async with serving(ticket=Ticket("", "+1555", "", BASE_URL)) as line:
        await line.parts.ears.listening.wait()
        await settle()
        (provisional,) = line.calls.live
        assert provisional.startswith("temp_")
        assert len(provisional) == len("temp_") + 16
        assert line.socket.outbox.empty()
        assert line.parts.recorded == []
        line.socket.put(start("CA7"))
        assert await line.socket.hear() == (sound_of("Hello there"), "utterance-1")
        assert line.calls.live == {"CA7"}
        await settle()
        assert line.parts.recorded == ["CA7"]
        assert line.calls.caller_of("CA7") == "+1555"


async def test_a_compatible_service_may_tell_names_in_the_address() -> None:
    """Specification lemon_gateway 8: the socket still reads the same names from a query."""
    query = {"callSid": "CA8", "from": "+1888", "to": "+1999"}
    async with serving(query=query, ticket=Ticket("", "", "", BASE_URL)) as line:
        await line.parts.ears.listening.wait()
        assert line.calls.live == {"CA8"}
        assert line.calls.caller_of("CA8") == "+1888"


@pytest.mark.behaviour("lemon_gateway.34")
async def test_another_sid_than_that_of_the_ticket_is_only_noted() -> None:
    """Specification lemon_gateway 8: any other mismatch is logged."""
    async with serving() as line:
        line.socket.put(start("CA2", token=line.calls.admit(TICKET)))
        await line.socket.hear()
        assert line.calls.live == {"CA1"}
        line.socket.put(start("CA3"))
        await settle()
        assert line.calls.live == {"CA1"}


async def test_a_provisional_call_cannot_take_the_name_of_a_live_one() -> None:
    """Specification lemon_gateway 8: one per call sid, also by the back door."""
    async with serving() as line:
        await line.open()
        nobody = Ticket("", "+1555", "", BASE_URL)
        async with serving(calls=line.calls, ticket=nobody) as second:
            second.socket.put(start("CA1"))
            await second.ended.wait()
        assert line.calls.live == {"CA1"}
