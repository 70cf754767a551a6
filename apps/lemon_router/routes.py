"""Places in channels: what a session's key says of its place, and how people write one.

A place is written `tg:[account@]chat[/topic]` for Telegram, where a negative chat is a group, and
`channel:account:kind:peer[/thread]` for every other one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from lemon_core import session_key as session_keys
from lemon_router.errors import Rejected

TELEGRAM: Final = "telegram"
DEFAULT_ACCOUNT: Final = "default"
_SHORT: Final = re.compile(
    r"(?:tg|telegram):(?:(?P<account>[^@:/#]+)@)?(?P<chat>-?[^@:/#]+)(?:[/#](?P<topic>[^:/#]+))?",
    re.IGNORECASE,
)
_LONG: Final = re.compile(
    r"(?P<channel_id>[^:]+):(?P<account_id>[^:]+):(?P<peer_kind>[^:]+):(?P<peer_id>[^:/]+)"
    r"(?:/(?P<thread_id>[^:/]+))?"
)
# How the parts of a place may be called in a mapping; the first name is the field's own.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "channel_id": ("channel_id", "channelId", "channel"),
    "account_id": ("account_id", "accountId", "account"),
    "peer_kind": ("peer_kind", "peerKind"),
    "peer_id": ("peer_id", "peerId"),
    "thread_id": ("thread_id", "threadId"),
}

TargetErrorCode = Literal[
    "missing_target",
    "invalid_target",
    "missing_channel_id",
    "missing_peer_id",
    "invalid_peer_kind",
    "invalid_name",
]


class InvalidTarget(Rejected):
    """A place or an alias that cannot be read; `reason` says what is wrong with it."""

    def __init__(self, reason: TargetErrorCode, target: object) -> None:
        super().__init__(
            reason,
            f"{target!r} names no place ({reason}): use tg:[account@]chat[/topic], "
            "channel:account:kind:peer[/thread], or the name of an endpoint",
        )


@dataclass(frozen=True, slots=True)
class Route:
    """A place in a channel."""

    channel_id: str
    account_id: str
    peer_kind: str
    peer_id: str
    thread_id: str | None = None

    @property
    def target(self) -> str:
        """The place as `parse_route` reads it."""
        if self.channel_id == TELEGRAM and self.peer_kind == _telegram_kind(self.peer_id):
            named = self.account_id != DEFAULT_ACCOUNT
            account = f"{self.account_id}@" if named else ""
            return f"tg:{account}{self.peer_id}{self._thread}"
        place = f"{self.channel_id}:{self.account_id}:{self.peer_kind}:{self.peer_id}"
        return f"{place}{self._thread}"

    @property
    def _thread(self) -> str:
        return "" if self.thread_id is None else f"/{self.thread_id}"

    def session_key(self, agent_id: str, *, sub_id: str | None = None) -> str:
        """The session of an agent at this place; raises `InvalidSessionKey`."""
        return session_keys.channel_peer(
            agent_id,
            self.channel_id,
            self.account_id,
            self.peer_kind,
            self.peer_id,
            thread_id=self.thread_id,
            sub_id=sub_id,
        )


def route_of(session_key: str) -> Route | None:
    """The place of a session; None for one that has none."""
    if not session_keys.is_channel_peer(session_key):
        return None
    parsed = session_keys.parse(session_key)
    return Route(
        parsed.channel_id or "",
        parsed.account_id or "",
        parsed.peer_kind or "",
        parsed.peer_id or "",
        parsed.thread_id,
    )


def parse_route(target: object) -> Route:
    """The place that `target` names, a text or a mapping; raises `InvalidTarget`."""
    if target is None or target == "" or target == {}:
        raise InvalidTarget("missing_target", target)
    if isinstance(target, Route):
        return target
    if isinstance(target, str):
        return _checked(_from_text(target.strip()), target)
    if isinstance(target, Mapping):
        return _checked(_from_mapping(target), target)
    raise InvalidTarget("invalid_target", target)


def _from_text(text: str) -> Route:
    if not text:
        raise InvalidTarget("missing_target", text)
    if short := _SHORT.fullmatch(text):
        return _telegram(short["chat"], short["account"], short["topic"])
    if long := _LONG.fullmatch(text):
        parts = long.groupdict()
        return Route(**{**parts, "channel_id": parts["channel_id"].lower()})
    raise InvalidTarget("invalid_target", text)


def _from_mapping(target: Mapping[object, object]) -> Route:
    parts = {field: _first(target, names) for field, names in _NAMES.items()}
    chat = _first(target, ("chat_id", "chatId"))
    topic = _first(target, ("topic_id", "topicId"))
    if chat is not None and parts["channel_id"] in (None, TELEGRAM):
        found = _telegram(chat, parts["account_id"], topic or parts["thread_id"])
        kind = parts["peer_kind"]
        return found if kind is None else replace(found, peer_kind=kind)
    if parts["channel_id"] is None:
        raise InvalidTarget("missing_channel_id", dict(target))
    if parts["peer_id"] is None:
        raise InvalidTarget("missing_peer_id", dict(target))
    kind = parts["peer_kind"]
    if kind is None:
        kind = _telegram_kind(parts["peer_id"]) if parts["channel_id"] == TELEGRAM else "dm"
    return Route(
        parts["channel_id"].lower(),
        parts["account_id"] or DEFAULT_ACCOUNT,
        kind,
        parts["peer_id"],
        parts["thread_id"],
    )


def _first(target: Mapping[object, object], names: tuple[str, ...]) -> str | None:
    """The first of these entries that says something; ids may be written as numbers."""
    for name in names:
        value = target.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _telegram(chat: str, account: str | None, topic: str | None) -> Route:
    return Route(TELEGRAM, account or DEFAULT_ACCOUNT, _telegram_kind(chat), chat, topic)


def _telegram_kind(chat: str) -> str:
    return "group" if chat.startswith("-") else "dm"


def _checked(route: Route, target: object) -> Route:
    """`route`, which can be part of a session's key."""
    if route.peer_kind not in session_keys.PEER_KINDS:
        raise InvalidTarget("invalid_peer_kind", target)
    try:
        route.session_key("default")
    except session_keys.InvalidSessionKey as exc:
        raise InvalidTarget("invalid_target", target) from exc
    return route
