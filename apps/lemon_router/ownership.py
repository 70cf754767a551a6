"""Which sessions this router may run: all of them, or on a shared store those that it holds.

Several routers on one store must not run one session at the same time. The one that runs it holds
its lock (`lemon_core.store.node_locks`), and keeps it while the session is used: a message of an
owned session costs nothing. A session moves when its owner gives it back, because nothing was heard
of it for a while, or between two runs because another router wants it; or when the owner's
connection to the database is dead. Then the new owner looks first at what the old one left.
docs/decisions/0012-who-owns-a-session.md weighs this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class End:
    """What is to end: one run, or everything of a session; and why."""

    reason: str
    run_id: str | None = None
    session_key: str | None = None


class Owner(Protocol):
    """The router, as ownership needs it."""

    def is_active(self, session_key: str) -> bool:
        """True while a run of the session is active here."""

    def release_held(self) -> None:
        """Start what may start by now."""

    def abort_here(self, end: End) -> None:
        """Another router was asked to end what may be here."""

    async def adopt(self) -> None:
        """Take over the runs of routers that are dead. Raises `StoreError`."""

    async def runs_elsewhere(self, session_key: str) -> bool:
        """True when a run of the session may be going on for another router."""

    async def left_by(self) -> set[str]:
        """The routers that have open records. Raises `StoreError`."""

    async def let_go_of_others(self) -> None:
        """Forget runs that another router has adopted meanwhile. Raises `StoreError`."""


class Ownership(Protocol):
    """What the runs of a router ask before they start."""

    def claim(self, session_key: str) -> bool:
        """True when a run of the session may start; if not, `Owner.release_held` will follow."""

    def ask(self, session_key: str) -> None:
        """A message of the session is coming: begin to ask, without waiting."""

    async def answered(self, session_key: str) -> None:
        """Return when it is known whether the session can be had at once, but soon."""

    async def take(self, session_key: str) -> None:
        """Return when the session is owned, however long that takes."""

    def run_over(self, session_key: str) -> None:
        """A run of the session has ended, and the next has not started yet."""

    def end_elsewhere(self, end: End) -> None:
        """Ask the other routers to end what may be theirs."""


class EverySession:
    """This router is alone on its store."""

    def claim(self, session_key: str) -> bool:
        """See `Ownership`."""
        return True

    def ask(self, session_key: str) -> None:
        """See `Ownership`."""

    async def answered(self, session_key: str) -> None:
        """See `Ownership`."""

    async def take(self, session_key: str) -> None:
        """See `Ownership`."""

    def run_over(self, session_key: str) -> None:
        """See `Ownership`."""

    def end_elsewhere(self, end: End) -> None:
        """See `Ownership`."""
