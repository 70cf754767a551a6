"""Messages and the numbers in them (specification lemon_gateway 7)."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from lemon_core.store import StoreCorrupt
from lemon_gateway.sms.messages import MessageFilter, SmsMessage, codes_in, newest_first
from lemon_gateway.tests.fakes import NOW_MS
from lemon_gateway.tests.sms_rig import NUMBER, SENDER, delivery


def message(sid: str = "SM1", body: str = "your code is 1234", at_ms: int = NOW_MS) -> SmsMessage:
    found = SmsMessage.of_fields(delivery(sid, body), at_ms)
    assert found is not None
    return found


@pytest.mark.behaviour("lemon_gateway.32")
@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("your code is 123456.", ("123456",)),
        ("1234 and 12345678", ("1234", "12345678")),
        ("123 or 123456789 or 12a4", ()),
        ("2222 1111 2222", ("2222", "1111")),
        ("G-123456 is your code", ("123456",)),
        ("验证码123456，请勿泄露", ("123456",)),
        ("１２３４５", ()),
        ("call +15552223333 or x1234y", ()),
        ("", ()),
    ],
)
def test_codes_are_numbers_of_four_to_eight_digits(body: str, codes: tuple[str, ...]) -> None:
    """Each once, in their order."""
    assert codes_in(body) == codes


def test_a_delivery_becomes_a_message() -> None:
    """Texts are trimmed, and what came is kept."""
    fields = delivery("SM1", "  your code\n is 1234 ")
    assert SmsMessage.of_fields(fields, NOW_MS) == SmsMessage(
        message_sid="SM1",
        account_sid="AC1",
        to=NUMBER,
        from_=SENDER,
        body="your code\n is 1234",
        codes=("1234",),
        received_at_ms=NOW_MS,
        raw=urlencode(fields),
    )


def test_a_message_needs_a_sid() -> None:
    """`SmsMessageSid` stands in; a blank or endless one is none."""
    old = SmsMessage.of_fields([("SmsMessageSid", "SM7"), ("MessageSid", " ")], NOW_MS)
    assert old is not None
    assert (old.message_sid, old.body, old.codes, old.from_) == ("SM7", "", (), "")
    assert SmsMessage.of_fields([("Body", "1234")], NOW_MS) is None
    assert SmsMessage.of_fields([("MessageSid", "S" * 65)], NOW_MS) is None


def test_a_message_comes_back_from_the_store() -> None:
    """Under the names of Twilio's world; a damaged one is told."""
    kept = message()
    row = kept.row()
    assert row["from"] == SENDER
    assert SmsMessage.of_row(row) == kept
    assert SmsMessage.of_row({**row, "later": 1}) == kept
    with pytest.raises(StoreCorrupt, match="received_at_ms"):
        SmsMessage.of_row({**row, "received_at_ms": "yesterday"})
    with pytest.raises(StoreCorrupt):
        SmsMessage.of_row("nothing")


@pytest.mark.parametrize(
    ("asks", "takes"),
    [
        (MessageFilter(), True),
        (MessageFilter(to=NUMBER), True),
        (MessageFilter(to="+1 (555) 000-1111"), True),
        (MessageFilter(to="15550001111"), True),
        (MessageFilter(to="+1"), False),
        (MessageFilter(from_contains="5552"), True),
        (MessageFilter(from_contains="9999"), False),
        (MessageFilter(body_contains="CODE"), True),
        (MessageFilter(body_contains="password"), False),
        (MessageFilter(since_ms=NOW_MS), True),
        (MessageFilter(since_ms=NOW_MS + 1), False),
        (MessageFilter(to=NUMBER, body_contains="password"), False),
    ],
)
def test_a_filter_asks_for_everything_at_once(asks: MessageFilter, takes: bool) -> None:
    """What it does not name it takes."""
    assert asks.takes(message()) is takes


def test_senders_are_found_in_any_case() -> None:
    """Some are words."""
    bank = SmsMessage.of_fields(delivery("SM1", "1234", sender="MyBank"), NOW_MS)
    assert bank is not None
    assert MessageFilter(from_contains="mybank").takes(bank)


def test_the_newest_comes_first() -> None:
    """And equally old ones always in the same order."""
    a, b, c = message("SMa", at_ms=1), message("SMb", at_ms=2), message("SMc", at_ms=2)
    assert newest_first([a, b, c]) == newest_first([c, b, a]) == [c, b, a]
