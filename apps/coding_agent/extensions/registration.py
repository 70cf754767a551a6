"""Where the providers of extensions go: the built-in one of a name wins, then who came first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coding_agent.extensions.api import Provider, ProviderKind
from coding_agent.extensions.loading import LoadedExtension


class ProviderPort(Protocol):
    """Whoever uses providers of one type."""

    def is_built_in(self, name: str) -> bool: ...
    def offer(self, name: str, implementation: object) -> None: ...
    def withdraw(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RegisteredProvider:
    """A provider and whose it is; `is_used` is False where nothing in this runtime asks for its
    type."""

    type: ProviderKind
    name: str
    extension: str
    is_used: bool


@dataclass(frozen=True, slots=True)
class ProviderConflict:
    """A provider that does not count; `winner` is `built-in` or an extension."""

    type: ProviderKind
    name: str
    extension: str
    winner: str


class ProviderRegistration:
    """`ports` are the users of providers in this runtime, by type."""

    def __init__(self, ports: Mapping[ProviderKind, ProviderPort]) -> None:
        self._ports = dict(ports)
        self._registered: dict[tuple[ProviderKind, str], RegisteredProvider] = {}
        self._conflicts: list[ProviderConflict] = []

    def register(self, extensions: Sequence[LoadedExtension]) -> None:
        """Offer what these have, in the order of their names."""
        for extension in sorted(extensions, key=lambda each: each.name):
            for provider in extension.providers:
                self._register(extension.name, provider)

    def withdraw(self, extensions: Sequence[LoadedExtension]) -> None:
        """Take back what these have offered."""
        names = {extension.name for extension in extensions}
        for key, row in tuple(self._registered.items()):
            if row.extension in names:
                del self._registered[key]
                if (port := self._ports.get(row.type)) is not None:
                    port.withdraw(row.name)
        self._conflicts = [row for row in self._conflicts if row.extension not in names]

    def of(
        self, extensions: Collection[str]
    ) -> tuple[list[RegisteredProvider], list[ProviderConflict]]:
        """What of these extensions counts, and what does not."""
        registered = [row for row in self._registered.values() if row.extension in extensions]
        return registered, [row for row in self._conflicts if row.extension in extensions]

    def _register(self, extension: str, provider: Provider) -> None:
        port = self._ports.get(provider.type)
        taken = self._registered.get((provider.type, provider.name))
        winner = taken.extension if taken is not None else None
        if port is not None and port.is_built_in(provider.name):
            winner = "built-in"
        if winner is not None:
            self._conflicts.append(
                ProviderConflict(provider.type, provider.name, extension, winner)
            )
            return
        if port is not None:
            port.offer(provider.name, provider.implementation)
        self._registered[provider.type, provider.name] = RegisteredProvider(
            provider.type, provider.name, extension, port is not None
        )
