"""What servers said about their models, for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lemon_ai.types import Model

FRESH_MS: Final = 300_000


def _monotonic_ms() -> float:
    return time.monotonic_ns() / 1_000_000


@dataclass(frozen=True, slots=True)
class CachedModels:
    """One answer. `authoritative`: a model that is not in it does not exist."""

    models: tuple[Model, ...]
    updated_at: float
    authoritative: bool


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How many answers are kept, how many of them still count, and how reads went."""

    entries: int
    fresh: int
    hits: int
    misses: int


class ModelCache:
    """Answers by provider; one that is older than `fresh_ms` is none."""

    def __init__(
        self, *, fresh_ms: int = FRESH_MS, now_ms: Callable[[], float] = _monotonic_ms
    ) -> None:
        self._fresh_ms, self._now_ms = fresh_ms, now_ms
        self._entries: dict[str, CachedModels] = {}
        self._hits = self._misses = 0

    def read(self, provider: str) -> CachedModels | None:
        """The answer, as long as it is fresh."""
        entry = self._entries.get(provider)
        if entry is None or not self._is_fresh(entry):
            self._misses += 1
            return None
        self._hits += 1
        return entry

    def write(
        self, provider: str, models: Sequence[Model], *, authoritative: bool = False
    ) -> CachedModels:
        """Keep an answer, in place of an older one."""
        entry = CachedModels(tuple(models), self._now_ms(), authoritative)
        self._entries[provider] = entry
        return entry

    def invalidate(self, provider: str) -> None:
        """Forget what one provider said."""
        self._entries.pop(provider, None)

    def invalidate_all(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def stats(self) -> CacheStats:
        """For whoever wonders whether it is of use."""
        fresh = sum(map(self._is_fresh, self._entries.values()))
        return CacheStats(len(self._entries), fresh, self._hits, self._misses)

    def _is_fresh(self, entry: CachedModels) -> bool:
        return self._now_ms() - entry.updated_at < self._fresh_ms
