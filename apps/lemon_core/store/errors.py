"""What can go wrong with the store, by what a caller does about it."""

from __future__ import annotations

from lemon_core.errors import LemonError


class StoreError(LemonError):
    """The store refused or failed; nothing of the refused write is visible."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be used now: closed, unreachable, unwritable or full.

    `outcome_unknown` is True when a write was under way as the wait for it ran out or the
    connection was lost: it may be committed, and the store reads that key from the database from
    then on.
    """

    code = "store_unavailable"

    def __init__(self, reason: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(reason)
        self.outcome_unknown = outcome_unknown


class StoreBusy(StoreError):
    """Somebody else held the database for too long; nothing was written, try again."""

    code = "store_busy"


class StoreCorrupt(StoreError):
    """Stored bytes cannot be read back; a corrupt record never reads as missing."""

    code = "store_corrupt"


class StoreTooNew(StoreError):
    """A newer version of Lemon wrote the database; this one leaves it untouched."""

    code = "store_too_new"

    def __init__(
        self,
        where: str,
        found: int,
        supported: int,
        *,
        instead: str = "set LEMON_STORE_PATH to another folder",
    ) -> None:
        super().__init__(
            f"{where}: written by a newer Lemon (store format {found}, this version reads up to "
            f"{supported}): update Lemon, or {instead}"
        )
        self.where, self.found, self.supported = where, found, supported


class UnsupportedValue(StoreError):
    """A key or value that the store cannot keep and give back equal; a mistake of the caller."""

    code = "unsupported_value"
