"""Session keys: the strings that name a conversation's owner and place.

    agent:<agent_id>:main[:sub:<id>]
    agent:<agent_id>:<channel_id>:<account_id>:<peer_kind>:<peer_id>[:thread:<id>][:sub:<id>]

Extras come in pairs, each at most once, in any order. Builders refuse ids that would not
parse back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lemon_core.errors import LemonError

PeerKind = Literal["dm", "group", "channel", "main", "unknown"]
PEER_KINDS: tuple[str, ...] = get_args(PeerKind)


class InvalidSessionKey(LemonError):
    """A session key (or a part of one) that does not follow the format."""

    code = "invalid_session_key"

    def __init__(self, reason: Literal["invalid", "invalid_peer_kind"], key: str) -> None:
        super().__init__(
            f"session key {key!r} is not valid ({reason}): expected "
            "agent:<agent>:main[:sub:<id>] or "
            "agent:<agent>:<channel>:<account>:<peer kind>:<peer>[:thread:<id>][:sub:<id>]"
        )
        self.reason, self.key = reason, key


@dataclass(frozen=True, slots=True)
class ParsedSessionKey:
    """The parts of a session key; what does not apply to its kind is None."""

    agent_id: str
    kind: Literal["main", "channel_peer"]
    channel_id: str | None = None
    account_id: str | None = None
    peer_kind: str | None = None
    peer_id: str | None = None
    thread_id: str | None = None
    sub_id: str | None = None


def main(agent_id: str, *, sub_id: str | None = None) -> str:
    """The key of an agent's main session, or of one of its numbered side sessions."""
    key = f"agent:{_part(agent_id)}:main"
    return key if sub_id is None else f"{key}:sub:{_part(sub_id)}"


def channel_peer(
    agent_id: str,
    channel_id: str,
    account_id: str,
    peer_kind: str,
    peer_id: str,
    *,
    thread_id: str | None = None,
    sub_id: str | None = None,
) -> str:
    """The key of a conversation with a peer on a channel."""
    parts = ["agent", agent_id, channel_id, account_id, peer_kind, peer_id]
    if thread_id is not None:
        parts += ["thread", thread_id]
    if sub_id is not None:
        parts += ["sub", sub_id]
    key = ":".join(_part(part) for part in parts)
    parse(key)
    return key


def parse(key: str) -> ParsedSessionKey:
    """The parts of `key`; raises `InvalidSessionKey`, whose `reason` says what is wrong."""
    match key.split(":"):
        case ["agent", agent, "main", *extras] if _clean(key):
            found = _extras(key, extras, allowed=("sub",))
            return ParsedSessionKey(agent, "main", sub_id=found.get("sub"))
        case ["agent", agent, channel, account, peer_kind, peer, *extras] if _clean(key):
            if peer_kind not in PEER_KINDS:
                raise InvalidSessionKey("invalid_peer_kind", key)
            found = _extras(key, extras, allowed=("thread", "sub"))
            return ParsedSessionKey(
                agent_id=agent,
                kind="channel_peer",
                channel_id=channel,
                account_id=account,
                peer_kind=peer_kind,
                peer_id=peer,
                thread_id=found.get("thread"),
                sub_id=found.get("sub"),
            )
        case _:
            raise InvalidSessionKey("invalid", key)


def is_valid(key: object) -> bool:
    """True for a string that `parse` accepts."""
    try:
        return isinstance(key, str) and parse(key) is not None
    except InvalidSessionKey:
        return False


def agent_id(key: object) -> str | None:
    """The agent that `key` belongs to, or None when it is not a session key."""
    try:
        return parse(key).agent_id if isinstance(key, str) else None
    except InvalidSessionKey:
        return None


def is_main(key: object) -> bool:
    """True for the key of an agent's main session or one of its side sessions."""
    return _kind(key) == "main"


def is_channel_peer(key: object) -> bool:
    """True for the key of a conversation with a peer on a channel."""
    return _kind(key) == "channel_peer"


def _kind(key: object) -> str | None:
    try:
        return parse(key).kind if isinstance(key, str) else None
    except InvalidSessionKey:
        return None


def _clean(key: str) -> bool:
    """No empty segment and no control character: both would make two keys look alike."""
    return all(key.split(":")) and key.isprintable()


def _part(value: str) -> str:
    if not value or ":" in value or not value.isprintable():
        raise InvalidSessionKey("invalid", value)
    return value


def _extras(key: str, extras: list[str], *, allowed: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    if len(extras) % 2:
        raise InvalidSessionKey("invalid", key)
    for name, value in zip(extras[::2], extras[1::2], strict=True):
        if name not in allowed or name in found:
            raise InvalidSessionKey("invalid", key)
        found[name] = value
    return found
