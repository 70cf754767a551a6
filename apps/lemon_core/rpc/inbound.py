"""Converters of channel messages on their way to a router."""

from __future__ import annotations

from collections.abc import Mapping

from lemon.router.v1 import router_pb2 as pb
from lemon_core.messages import InboundMessage, MessageText, Sender
from lemon_core.rpc.fields import CONTRACT_VERSION, reading, require_contract
from lemon_core.rpc.payload_in import optional
from lemon_core.rpc.wire_json import dump_json, dump_map, load_json, load_map


def inbound_to_message(inbound: InboundMessage) -> pb.InboundMessage:
    """The message of a channel's message; raises `NotJson` when `raw` or `meta` is not JSON."""
    peer = inbound.peer
    return pb.InboundMessage(
        channel_id=inbound.channel_id,
        account_id=inbound.account_id,
        peer=pb.InboundPeer(kind=peer.kind, id=peer.id, thread_id=peer.thread_id),
        sender=None if inbound.sender is None else _sender(inbound.sender),
        message=_text(inbound.message),
        raw_json=None if inbound.raw is None else dump_json(inbound.raw, "raw_json"),
        meta_json=dump_map(inbound.meta, "meta_json"),
        contract_version=CONTRACT_VERSION,
    )


def inbound_from_message(message: pb.InboundMessage) -> InboundMessage:
    """The channel's message in `message`; raises `UnsupportedContract` or `InvalidMessage`."""
    require_contract(message.contract_version)
    raw = load_json(message.raw_json, "raw_json") if message.HasField("raw_json") else None
    peer, text = message.peer, message.message
    written: dict[str, object] = {"text": text.text, **optional(text, "id", "reply_to_id")}
    if text.HasField("timestamp_ms"):
        written["timestamp"] = text.timestamp_ms
    sender: Mapping[str, object] | None = None
    if message.HasField("sender"):
        named = optional(message.sender, "username", "display_name", "bot")
        sender = {"id": message.sender.id, **named}
    with reading("inbound"):
        return InboundMessage.model_validate(
            {
                "channel_id": message.channel_id,
                "account_id": message.account_id,
                "peer": {"kind": peer.kind, "id": peer.id, **optional(peer, "thread_id")},
                "sender": sender,
                "message": written,
                "raw": raw,
                "meta": load_map(message.meta_json, "meta_json"),
            }
        )


def _sender(sender: Sender) -> pb.InboundSender:
    return pb.InboundSender(
        id=sender.id, username=sender.username, display_name=sender.display_name, bot=sender.bot
    )


def _text(text: MessageText) -> pb.InboundText:
    return pb.InboundText(
        id=text.id, text=text.text, timestamp_ms=text.timestamp, reply_to_id=text.reply_to_id
    )
