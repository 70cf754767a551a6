"""What the stores of this folder share: refusals, changes that lose no race, facts without text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from lemon_agent.errors import AgentError
from lemon_core.store.core import ABSENT
from lemon_core.store.rows import parse_row

if TYPE_CHECKING:
    from lemon_core.store import Store
    from lemon_core.store.codec import Key

T = TypeVar("T")
HASH_LENGTH: Final = 16


class NotFound(AgentError):
    """There is no such record."""

    code: ClassVar[str] = "not_found"


class InvalidInput(AgentError):
    """A value that has no meaning; `reason` is the code that callers pass on."""

    code: ClassVar[str] = "invalid_input"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def change(
    store: Store, table: str, key: Key, cls: type[T], update: Callable[[T], T], missing: str
) -> T:
    """Read, `update` and write the record in one go, again when somebody else was quicker.

    Raises `NotFound` with the text `missing`, whatever `update` raises, and `StoreError`.
    """
    while True:
        stored = await store.load(table, key)
        if stored is None:
            raise NotFound(missing)
        changed = update(parse_row(cls, stored, f"{table} {key!r}"))
        if await store.compare_and_swap(table, key, stored, as_row(changed)):
            return changed


async def insert(store: Store, table: str, key: Key, record: object) -> bool:
    """Write a record that is not there yet; False when it is."""
    return await store.compare_and_swap(table, key, ABSENT, as_row(record))


async def records(store: Store, table: str, cls: type[T]) -> list[T]:
    """Every record of a table."""
    return [parse_row(cls, row, f"{table} {key!r}") for key, row in await store.load_all(table)]


def as_row(record: Any) -> dict[str, object]:
    """A dataclass as it is stored: JSON types throughout."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def short_hash(text: str) -> str:
    """Stands for a key in diagnostics, which show no names."""
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
