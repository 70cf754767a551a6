"""Messages and deliveries (specification lemon_core 3.6)."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from lemon_core.messages import (
    DeliveryIntent,
    DeliveryKind,
    DeliveryRoute,
    InboundMessage,
    MessageText,
    Peer,
)

ROUTE = DeliveryRoute(channel_id="telegram", account_id="bot", peer_kind="dm", peer_id="5")


@pytest.mark.parametrize("message", [{}, {"text": None}, {"text": ""}])
def test_a_message_always_has_text(message: dict[str, object]) -> None:
    inbound = InboundMessage.model_validate(
        {
            "channel_id": "telegram",
            "account_id": "bot",
            "peer": {"kind": "group", "id": "5", "thread_id": "7"},
            "sender": None,
            "message": message,
        }
    )
    assert inbound.message == MessageText(text="")
    assert inbound.peer == Peer(kind="group", id="5", thread_id="7")
    assert (inbound.sender, inbound.raw, inbound.meta) == (None, None, {})


def test_a_message_survives_json_and_cannot_be_changed() -> None:
    text = (
        '{"channel_id":"telegram","account_id":"bot","peer":{"kind":"dm","id":"5","thread_id":null},'
        '"sender":{"id":"9","username":"u","display_name":null,"bot":false},'
        '"message":{"id":"1","text":"hi","timestamp":3,"reply_to_id":null},"raw":{"x":1},"meta":{}}'
    )
    inbound = InboundMessage.model_validate_json(text)
    assert inbound.model_dump_json() == text
    with pytest.raises(ValidationError):
        setattr(inbound, "account_id", "other")  # noqa: B010 - mypy refuses the assignment too


def test_an_intent_says_what_and_where_and_nothing_of_a_platform() -> None:
    for kind in get_args(DeliveryKind):
        intent = DeliveryIntent(
            intent_id="i", run_id="r", session_key="s", route=ROUTE, kind=kind, body={"text": "x"}
        )
        assert DeliveryIntent.model_validate_json(intent.model_dump_json()) == intent
    with pytest.raises(ValidationError):
        DeliveryIntent.model_validate(
            {"intent_id": "i", "run_id": "r", "session_key": "s", "route": ROUTE, "kind": "sticker"}
        )
    with pytest.raises(ValidationError):
        DeliveryRoute.model_validate({**ROUTE.model_dump(), "parse_mode": "HTML"})
