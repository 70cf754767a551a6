"""What all runs of a runtime share of the web: settings, keys, caches, the rate of searching."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from coding_agent.web.cache import WebCache
from coding_agent.web.guard import page_guard
from lemon_core.address_guard import AddressGuard, Lookup, system_lookup
from lemon_core.clock import Clock
from lemon_core.config.tools import Web as WebSettings
from lemon_core.version import __version__

FetchSecret = Callable[[str], Awaitable[str | None]]
"""`await fetch_secret(name)`: the stored secret or the variable of that name."""

BRAVE_URL: Final = "https://api.search.brave.com/res/v1/web/search"
SEARCHES_PER_S: Final = 5
_MINUTE_MS: Final = 60_000


@dataclass(eq=False, slots=True)
class Web:
    """`cache_dir` None keeps results in memory alone; `lookup` resolves names."""

    settings: WebSettings
    fetch_secret: FetchSecret
    clock: Clock
    cache_dir: Path | None = None
    lookup: Lookup = system_lookup
    brave_url: str = BRAVE_URL
    pages: WebCache = field(init=False)
    searches: WebCache = field(init=False)
    _next_search_ms: int = field(init=False, default=0)
    _turn: anyio.Lock = field(init=False)

    def __post_init__(self) -> None:
        self.pages = self._cache("webfetch.json", self.settings.fetch.cache_ttl_minutes)
        self.searches = self._cache("websearch.json", self.settings.search.cache_ttl_minutes)
        self._turn = anyio.Lock()

    @property
    def guard(self) -> AddressGuard:
        """The rule for pages."""
        fetch = self.settings.fetch
        hosts = frozenset(host.lower().rstrip(".") for host in fetch.allowed_hostnames)
        return page_guard(self.lookup, fetch.allow_private_network, hosts)

    @property
    def user_agent(self) -> str:
        """How the product calls itself."""
        return self.settings.fetch.user_agent or f"Mozilla/5.0 (compatible; Lemon/{__version__})"

    async def key(
        self, given: str | None, secret: str | None, names: Sequence[str]
    ) -> tuple[str, str] | None:
        """A key and where it was found: configured, in a named secret, or under `names`."""
        if given:
            return given, "config"
        for name in (*((secret,) if secret else ()), *names):
            value = await self.fetch_secret(name)
            if value and value.strip():
                return value.strip(), name
        return None

    async def search_turn(self) -> None:
        """Return when the next search may be sent: five in a second."""
        async with self._turn:  # in the order of asking
            wait_ms = self._next_search_ms - self.clock.monotonic_ms()
            if wait_ms > 0:
                await self.clock.sleep(wait_ms)
            self._next_search_ms = self.clock.monotonic_ms() + 1_000 // SEARCHES_PER_S

    def _cache(self, name: str, minutes: float) -> WebCache:
        return WebCache(
            None if self.cache_dir is None else self.cache_dir / name,
            ttl_ms=int(minutes * _MINUTE_MS),
            max_entries=self.settings.cache.max_entries,
            now_ms=self.clock.now_ms,
        )
