"""The port through which chat channels own their part of the `gateway` section.

Core knows no channel. Whoever owns one contributes a `GatewayChannel`; then `gateway.enable_<id>`
and `[gateway.<id>]` exist, and what is in there is checked and filled in by that object alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from lemon_core.config import keys
from lemon_core.config.source import KeyPath


class GatewayChannel(Protocol):
    """One channel's say in its own section. Its methods are pure and do no I/O."""

    @property
    def id(self) -> str:
        """The channel's name, which is that of its section."""

    def resolve(self, section: Mapping[str, object]) -> dict[str, object]:
        """`section` with defaults and forms made equal; it has passed `validate`."""

    def enabled(self, configured: bool) -> bool:
        """Whether the channel is on, given what `enable_<id>` says."""

    def validate(self, section: Mapping[str, object]) -> list[str]:
        """What means nothing in `section`, each as `<key>: <message>` or without the key."""


def section_of(channel: GatewayChannel) -> tuple[str, str]:
    """Where the channel's section is."""
    return ("gateway", channel.id)


def switch_of(channel: GatewayChannel) -> tuple[str, str]:
    """Where the switch of the channel is."""
    return ("gateway", f"enable_{channel.id}")


def channel_problems(
    channels: Iterable[GatewayChannel], data: Mapping[str, object]
) -> list[tuple[KeyPath, str]]:
    """What the channels find wrong in `data`, as (path, message)."""
    found: list[tuple[KeyPath, str]] = []
    for channel in channels:
        section = keys.get(data, section_of(channel))
        for message in channel.validate(section) if isinstance(section, Mapping) else ():
            key, colon, rest = message.partition(": ")
            inner = tuple(key.split(".")) if colon else ()
            known = bool(inner) and keys.get(section, inner) is not None
            path = (*section_of(channel), *inner) if known else section_of(channel)
            found.append((path, rest if known else message))
    return found


def resolve_channels(channels: Iterable[GatewayChannel], data: dict[str, object]) -> None:
    """Let every channel fill in its section of `data` and decide whether it is on."""
    for channel in channels:
        section = keys.get(data, section_of(channel))
        configured = keys.get(data, switch_of(channel)) is True
        resolved = channel.resolve(section if isinstance(section, Mapping) else {})
        keys.put(data, section_of(channel), resolved)
        keys.put(data, switch_of(channel), channel.enabled(configured))
