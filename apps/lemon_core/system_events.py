"""Payloads of the topics `system`, `channels` and `routing_feedback`, and of a session alone."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lemon_core.payload import RarePayload

PREVIEW_MAX_CHARS = 200


class SecretChanged(RarePayload):
    """A stored secret was set or is gone; never with its value."""

    owner: str
    name: str
    action: Literal["set", "delete"]


class ConfigReloaded(RarePayload):
    """The configuration is another one now; `diff` is redacted."""

    reload_id: str
    reason: str | None = None
    changed_sources: list[str] | None = None
    changed_paths: list[str] | None = None
    diff: dict[str, object] | None = None


class ConfigReloadFailed(RarePayload):
    """The changed configuration cannot be used; the last good one stays."""

    reload_id: str
    error: str
    reason: str | None = None


class SessionReset(RarePayload):
    """A session was started over: what belonged to its earlier conversations has ended."""

    session_key: str


class TalkModeChanged(RarePayload):
    """A session is spoken with, or no longer."""

    session_key: str
    mode: str


class CoalescedOutput(RarePayload):
    """The text of a run so far, collected for one channel; `seq` counts the collections."""

    session_key: str
    channel_id: str
    run_id: str
    text: str
    seq: int


class ChannelDelivery(RarePayload):
    """An intent was shown on its channel, or could not be."""

    intent_id: str
    channel_id: str
    kind: str
    ok: bool
    run_id: str | None = None
    session_key: str | None = None
    account_id: str | None = None
    peer_kind: str | None = None
    peer_id: str | None = None
    thread_id: str | None = None
    text_preview: str | None = Field(default=None, max_length=PREVIEW_MAX_CHARS)
    error: str | None = None
    duration_ms: int | None = None
    ts_ms: int | None = None


class RoutingFeedback(RarePayload):
    """How a routing choice turned out."""

    fingerprint_key: str
    outcome: str
    duration_ms: int | None = None
