"""A channel's message as a request: its session, agent, directory and queue mode.

Only stable ids decide: a display name can be set by anybody.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from lemon_core import session_key as session_keys
from lemon_core.bindings import BindingResolver, ChatScope
from lemon_core.resume import ResumeToken
from lemon_core.runs import QUEUE_MODES, QueueMode, RunRequest
from lemon_core.util import canonical_json

if TYPE_CHECKING:
    # Its models take milliseconds to make, and a process without channels has no use for them.
    from lemon_core.messages import InboundMessage

_RUN_IDS: Final = uuid.UUID("6f2f0c7e-3c0f-5d52-9a54-1f6a4e1f2b10")
"""The namespace of run ids that are derived from messages; never to be changed."""


class Inbound:
    """Reads messages with the help of the configured bindings."""

    def __init__(self, bindings: BindingResolver) -> None:
        self._bindings = bindings

    async def request(self, message: InboundMessage) -> RunRequest:
        """The request that `message` makes; raises `InvalidSessionKey` for ids with a colon."""
        meta = message.meta
        scope = self._scope(message)
        key = self.session_key(message)
        cwd = await self._bindings.resolve_cwd(scope)
        return RunRequest.normalize(
            {
                "origin": "channel",
                "session_key": key,
                "agent_id": session_keys.agent_id(key),
                "prompt": message.message.text,
                "queue_mode": self._queue_mode(meta, scope),
                "model": meta.get("model"),
                "images": meta.get("images"),
                "resume": _resume(meta.get("resume")),
                "cwd": meta.get("cwd") or (None if cwd is None else str(cwd)),
                "tool_policy": meta.get("tool_policy"),
                "meta": self._meta(message),
                "run_id": run_id_of(message),
            }
        )

    def session_key(self, message: InboundMessage) -> str:
        """The session that `message` belongs to: named by its channel, else that of its place."""
        named = message.meta.get("session_key")
        if isinstance(named, str) and session_keys.is_valid(named):
            return named
        peer = message.peer
        return session_keys.channel_peer(
            self._bindings.resolve_agent_id(self._scope(message)),
            message.channel_id,
            message.account_id,
            peer.kind,
            peer.id,
            thread_id=peer.thread_id,
        )

    def _scope(self, message: InboundMessage) -> ChatScope:
        """The place as bindings name it: a numbered chat may be written as a number there."""
        peer = message.peer
        scope = ChatScope(transport=message.channel_id, chat_id=peer.id, topic_id=peer.thread_id)
        if self._bindings.resolve_binding(scope) is not None:
            return scope
        topic = None if peer.thread_id is None else number(peer.thread_id)
        return ChatScope(transport=message.channel_id, chat_id=number(peer.id), topic_id=topic)

    def _queue_mode(self, meta: Mapping[str, object], scope: ChatScope) -> QueueMode:
        named = meta.get("queue_mode")
        if named in QUEUE_MODES:
            return cast(QueueMode, named)
        return self._bindings.resolve_queue_mode(scope) or "collect"

    @staticmethod
    def _meta(message: InboundMessage) -> dict[str, object]:
        peer, sender = message.peer, message.sender
        peer_facts = {"kind": peer.kind, "id": peer.id, "thread_id": peer.thread_id}
        context: dict[str, object] = {
            "channel_id": message.channel_id,
            "account_id": message.account_id,
            "peer": peer_facts,
            "sender": None if sender is None else sender.model_dump(),
        }
        meta = {**message.meta, "channel_context": context}
        meta.update({"channel_id": message.channel_id, "account_id": message.account_id})
        if message.message.id is not None:
            meta["user_msg_id"] = message.message.id
        return meta


def run_id_of(message: InboundMessage) -> str | None:
    """The one run id of a message, however often it arrives; None for one without an id."""
    if message.message.id is None:
        return None
    peer = message.peer
    place = [message.channel_id, message.account_id, peer.id, peer.thread_id, message.message.id]
    return f"run_{uuid.uuid5(_RUN_IDS, canonical_json(place).decode())}"


def _resume(value: object) -> ResumeToken | None:
    if not isinstance(value, Mapping):
        return None
    engine, token = value.get("engine"), value.get("value")
    if not (isinstance(engine, str) and isinstance(token, str) and engine and token):
        return None
    return ResumeToken(engine=engine, value=token)


def number(text: str) -> int | str:
    """`text` as a number when it is written as one; a chat's id is one in its own channel."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    # Only the canonical spelling: "007" is a name.
    return int(text) if digits.isdecimal() and str(int(digits)) == digits else sign + digits
