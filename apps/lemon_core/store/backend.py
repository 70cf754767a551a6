"""What a database must be able to do to carry a `Store`; keys and values are bytes here.

The protocol knows no SQL dialect: `memory`, `sqlite` and `postgres` pass one contract suite. All
methods raise `StoreError`s. A write that raised left nothing behind, unless the error says that its
outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Rows = list[tuple[bytes, bytes]]
"""Keys and values, both encoded."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the run history: a begin mark, or with `summary` a finished run."""

    run_id: str
    session_key: str
    started_at_ms: int
    digest: bytes | None = None
    finished_at_ms: int | None = None
    summary: bytes | None = None


RunRows = list[RunRow]


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value, whatever was there."""

    table: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key; absent is fine."""

    table: str
    key: bytes


@dataclass(frozen=True, slots=True)
class FinishRun:
    """Put a finished run into the history; an earlier mark keeps its start and its digest."""

    row: RunRow


@dataclass(frozen=True, slots=True)
class DeleteRuns:
    """Remove a session's runs, marks included, from the history."""

    session_key: str


Write = Put | Delete | FinishRun | DeleteRuns


class Backend(Protocol):
    """One database."""

    @property
    def shared(self) -> bool:
        """True when other processes write too, so that nothing of it may be kept in memory."""

    async def open(self) -> None:
        """Make it usable from the running event loop; refuses a database of a newer version."""

    async def close(self) -> None:
        """Finish what was submitted and let go; closing twice is harmless."""

    async def ping(self) -> None:
        """Return when the database answers; changes nothing."""

    async def get(self, table: str, key: bytes) -> bytes | None:
        """The value, or None."""

    async def list(self, table: str) -> Rows:
        """Everything in the table, in key order."""

    async def list_recent(self, table: str, limit: int) -> Rows:
        """The rows written last, newest first."""

    async def put_new(self, table: str, key: bytes, value: bytes) -> bool:
        """Insert if absent; exactly one of any concurrent callers gets True."""

    async def compare_and_swap(
        self, table: str, key: bytes, expected: bytes | None, new: bytes | None
    ) -> bool:
        """Replace `expected` by `new` at once; None is absence on either side."""

    async def take(self, table: str, key: bytes) -> bytes | None:
        """Read and delete at once."""

    async def transaction(self, writes: Sequence[Write]) -> None:
        """Commit all of `writes`, in order, or none."""

    async def begin_run(self, row: RunRow) -> bool:
        """Commit a begin mark; False when the run is in the history already."""

    async def get_run(self, run_id: str) -> RunRow | None:
        """The run's row in the history."""

    async def finished_runs(self, session_key: str, limit: int) -> RunRows:
        """The session's finished runs, newest start first."""

    async def sweep_runs(self, *, before_ms: int, keep_per_session: int) -> int:
        """Remove runs that started before `before_ms`, and finished ones past the newest
        `keep_per_session` of their session; the number that went."""
