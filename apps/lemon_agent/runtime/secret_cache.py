"""Stored secrets as a model call needs them: read and decrypted once, and noticed when they change.

What is stored is looked at by its metadata, at most once a second and only while somebody asks; a
value is decrypted again when its metadata is another one. So a model call costs no read and no
decryption, and a secret that another process sets counts a second later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import anyio

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.secret_errors import SecretsError

if TYPE_CHECKING:
    from lemon_core.secret_record import SecretInfo

log = get_logger(__name__)

FRESH_MS: Final = 1_000

_Mark = tuple[int, int]


class SecretStore(Protocol):
    """What is needed of core's `Secrets`."""

    async def list(self) -> tuple[SecretInfo, ...]: ...
    async def get(self, name: str) -> str: ...
    async def set(self, name: str, value: str, *, provider: str = "manual") -> SecretInfo: ...


class SecretCache:
    """Values of stored secrets. Raises `StoreError`: a store that does not answer must not read as
    "not stored"."""

    def __init__(self, store: SecretStore | None, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._marks: dict[str, _Mark] = {}
        self._looked_ms: int | None = None
        self._values: dict[str, tuple[_Mark, str]] = {}
        # Held over the store: of many calls at once one looks, and the others wait for it.
        self._looking = anyio.Lock()

    async def names(self) -> frozenset[str]:
        """The names of the secrets that are stored."""
        return frozenset(await self._current())

    async def get(self, name: str) -> str | None:
        """The secret's value; None when it is not stored or cannot be read, which is logged."""
        mark = (await self._current()).get(name)
        if mark is None or self._store is None:
            self._values.pop(name, None)
            return None
        if (value := self._known(name, mark)) is not None:
            return value
        async with self._looking:
            if (value := self._known(name, mark)) is not None:
                return value
            try:
                value = await self._store.get(name)
            except SecretsError as exc:
                log.warning("credentials.secret_unreadable", name=name, code=exc.code)
                return None
            self._values[name] = (mark, value)
        return value

    async def put(self, name: str, value: str) -> None:
        """Store a value that was renewed."""
        if self._store is None:
            return
        info = await self._store.set(name, value, provider="oauth")
        mark = (info.created_at, info.updated_at)
        self._marks = {**self._marks, name: mark}
        self._values[name] = (mark, value)

    async def _current(self) -> dict[str, _Mark]:
        if self._store is None or self._is_fresh():
            return self._marks
        async with self._looking:
            if not self._is_fresh():
                infos = await self._store.list()
                self._marks = {info.name: (info.created_at, info.updated_at) for info in infos}
                self._looked_ms = self._clock.monotonic_ms()
        return self._marks

    def _known(self, name: str, mark: _Mark) -> str | None:
        known = self._values.get(name)
        return known[1] if known is not None and known[0] == mark else None

    def _is_fresh(self) -> bool:
        looked = self._looked_ms
        return looked is not None and self._clock.monotonic_ms() - looked < FRESH_MS
