"""What comes in from a chat and what goes out to one, without any platform's own form.

A channel adapter turns a platform's event into an `InboundMessage`; the router says what is to be
shown as `DeliveryIntent`s, which the adapter renders. Nothing outside an adapter reads `meta` or
`raw` of a message.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lemon_core.session_key import PeerKind

DeliveryKind = Literal[
    "stream_snapshot",
    "stream_finalize",
    "tool_status_snapshot",
    "tool_status_finalize",
    "final_text",
    "file_batch",
    "reaction",
    "watchdog_prompt",
    "notice",
]


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Peer(_Contract):
    """The conversation that a message was written in."""

    kind: Literal["dm", "group", "channel"]
    id: str = Field(min_length=1)
    thread_id: str | None = None


class Sender(_Contract):
    """Who wrote a message."""

    id: str = Field(min_length=1)
    username: str | None = None
    display_name: str | None = None
    bot: bool | None = None


class MessageText(_Contract):
    """The message itself. `text` is "" when there is none; `timestamp` is in milliseconds."""

    id: str | None = None
    text: str = ""
    timestamp: int | None = None
    reply_to_id: str | None = None

    @field_validator("text", mode="before")
    @classmethod
    def _always_text(cls, value: object) -> object:
        return "" if value is None else value


class InboundMessage(_Contract):
    """A message from a channel; `sender` is None for what nobody wrote, such as a channel post."""

    channel_id: str = Field(min_length=1)
    account_id: str = Field(min_length=1)
    peer: Peer
    sender: Sender | None = None
    message: MessageText = Field(default_factory=MessageText)
    raw: object = None
    meta: dict[str, object] = Field(default_factory=dict)


class DeliveryRoute(_Contract):
    """Where something is to be shown."""

    channel_id: str = Field(min_length=1)
    account_id: str = Field(min_length=1)
    peer_kind: PeerKind
    peer_id: str = Field(min_length=1)
    thread_id: str | None = None


class DeliveryIntent(_Contract):
    """What is to be shown at `route`, in terms of its meaning; the channel decides how it looks.

    One `intent_id` is delivered once, however often it is handed over.
    """

    intent_id: str = Field(min_length=1)
    run_id: str = Field(min_length=1)
    session_key: str = Field(min_length=1)
    route: DeliveryRoute
    kind: DeliveryKind
    body: dict[str, object] = Field(default_factory=dict)
    attachments: tuple[dict[str, object], ...] = ()
    controls: dict[str, object] = Field(default_factory=dict)
    meta: dict[str, object] = Field(default_factory=dict)
