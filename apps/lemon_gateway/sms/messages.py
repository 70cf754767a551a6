"""A received text message: how it is read from Twilio's form, and what can be looked for in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlencode

from lemon_core.store.rows import parse_row
from lemon_gateway.twilio_signature import Fields

MAX_SID_CHARS: Final = 64

# ASCII: a code is often written without a space behind a letter that is none of ASCII.
_CODE: Final = re.compile(r"\b\d{4,8}\b", re.ASCII)


@dataclass(frozen=True, slots=True)
class SmsMessage:
    """A message as it is stored, by sid. Everything but the last two fields stays as it came.

    `codes` are the numbers of four to eight digits in `body`, each once, in their order; `raw` is
    the form that was delivered.
    """

    message_sid: str
    account_sid: str
    to: str
    from_: str
    body: str
    codes: tuple[str, ...]
    received_at_ms: int
    raw: str = ""
    claimed_by: str | None = None
    claimed_at_ms: int | None = None

    @classmethod
    def of_fields(cls, fields: Fields, now_ms: int) -> SmsMessage | None:
        """The message of a delivery, or None when it has no `MessageSid` that can be one."""
        first: dict[str, str] = {}
        for name, value in fields:
            first.setdefault(name, value)
        sid = first.get("MessageSid", "").strip() or first.get("SmsMessageSid", "").strip()
        if not sid or len(sid) > MAX_SID_CHARS:
            return None
        body = first.get("Body", "").strip()
        return cls(
            message_sid=sid,
            account_sid=first.get("AccountSid", "").strip(),
            to=first.get("To", "").strip(),
            from_=first.get("From", "").strip(),
            body=body,
            codes=codes_in(body),
            received_at_ms=now_ms,
            raw=urlencode(fields),
        )

    @classmethod
    def of_row(cls, row: object) -> SmsMessage:
        """The message as it was stored; raises `StoreCorrupt`."""
        named = {**row, "from_": row.get("from")} if isinstance(row, Mapping) else row
        return parse_row(cls, named, "a message in sms_inbox")

    def row(self) -> dict[str, object]:
        """What is stored."""
        fields = asdict(self)
        return {"from" if name == "from_" else name: value for name, value in fields.items()}


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages somebody asks for; None asks nothing. The words are found in any case."""

    to: str | None = None
    from_contains: str | None = None
    body_contains: str | None = None
    since_ms: int | None = None

    def takes(self, message: SmsMessage) -> bool:
        """Whether the message is one of them."""
        return (
            (self.to is None or _number(message.to) == _number(self.to))
            and _has(message.from_, self.from_contains)
            and _has(message.body, self.body_contains)
            and (self.since_ms is None or message.received_at_ms >= self.since_ms)
        )


def codes_in(body: str) -> tuple[str, ...]:
    """The numbers of four to eight digits that stand alone, each once, in their order."""
    return tuple(dict.fromkeys(_CODE.findall(body)))


def newest_first(messages: Sequence[SmsMessage]) -> list[SmsMessage]:
    """By the time of arrival; of equally old ones the order is fixed and means nothing."""
    return sorted(messages, key=lambda one: (one.received_at_ms, one.message_sid), reverse=True)


def _number(text: str) -> str:
    # As people write it: +1 (555) 000-1111 is what Twilio calls +15550001111.
    return re.sub(r"[\s().-]", "", text).removeprefix("+")


def _has(text: str, part: str | None) -> bool:
    return not part or part.casefold() in text.casefold()
