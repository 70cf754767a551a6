"""What the web tools have fetched: kept for some minutes, in one private file per tool."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread
import orjson

from coding_agent.workspace import make_private_folder
from lemon_core.logs import get_logger
from lemon_core.private_files import open_new

log = get_logger(__name__)


class WebCache:
    """At most `max_entries` results for `ttl_ms` each; a `ttl_ms` of 0 keeps nothing.

    Without `path` they are kept in memory alone. A file that cannot be used costs the cache only.
    """

    def __init__(
        self, path: Path | None, *, ttl_ms: int, max_entries: int, now_ms: Callable[[], int]
    ) -> None:
        self._path, self._ttl_ms = path, ttl_ms
        self._max_entries, self._now_ms = max_entries, now_ms
        self._entries: dict[str, dict[str, Any]] | None = None
        self._lock = anyio.Lock()

    async def get(self, key: str) -> dict[str, Any] | None:
        """What was kept under `key`, unless its time is over."""
        if not self._ttl_ms:
            return None
        async with self._lock:  # the file is read once
            entries = await self._loaded()
        entry = entries.get(key)
        if entry is None or not 0 <= self._now_ms() - entry["at_ms"] < self._ttl_ms:
            return None
        value: dict[str, Any] = entry["value"]
        return value

    async def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep `value`, a map of JSON values; the oldest entries go when there are too many."""
        if not self._ttl_ms:
            return
        async with self._lock:  # one writer at a time: the file holds what memory held last
            entries = await self._loaded()
            entries.pop(key, None)
            entries[key] = {"at_ms": self._now_ms(), "value": dict(value)}
            while len(entries) > self._max_entries:
                del entries[next(iter(entries))]
            if self._path is not None:
                await anyio.to_thread.run_sync(self._write, self._path, orjson.dumps(entries))

    async def _loaded(self) -> dict[str, dict[str, Any]]:
        if self._entries is None:
            found = {} if self._path is None else await anyio.to_thread.run_sync(_read, self._path)
            self._entries = found
        return self._entries

    def _write(self, path: Path, data: bytes) -> None:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            make_private_folder(path.parent)
            with open_new(beside) as file:
                file.write(data)
            os.replace(beside, path)
        except OSError as exc:
            beside.unlink(missing_ok=True)
            log.warning("web_cache.write_failed", path=str(path), reason=exc.strerror)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = orjson.loads(path.read_bytes())
        return {
            key: entry
            for key, entry in found.items()
            if isinstance(entry["at_ms"], int) and isinstance(entry["value"], dict)
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        log.warning("web_cache.unreadable", path=str(path))
        return {}
