"""Wire APIs that extensions bring: a `[providers.<name>]` block may name one as its `api`."""

from __future__ import annotations

from typing import Protocol, cast

from lemon_ai.adapters.base import Adapter


class WireApis(Protocol):
    """What is needed of lemon_agent's `ModelRuntime`."""

    def has_builtin_api(self, api: str) -> bool: ...
    def offer_api(self, api: str, adapter: Adapter) -> None: ...
    def withdraw_api(self, api: str) -> None: ...


class ModelPort:
    """The `ProviderPort` of type `model`."""

    def __init__(self, models: WireApis) -> None:
        self._models = models

    def is_built_in(self, name: str) -> bool:
        """Whether lemon_ai speaks it by itself."""
        return self._models.has_builtin_api(name)

    def offer(self, name: str, implementation: object) -> None:
        """Have calls of this API go to the extension's adapter."""
        # The loader has looked that it has what an adapter has.
        self._models.offer_api(name, cast(Adapter, implementation))

    def withdraw(self, name: str) -> None:
        """Take it back."""
        self._models.withdraw_api(name)
