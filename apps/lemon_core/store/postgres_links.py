"""The connections of one node to its PostgreSQL server: a few, made on demand, thrown away when
doubtful.

There is no task that keeps them up. A caller who finds none idle makes one, so a server that is
gone is told at once, and one that is back is used at once.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from lemon_core.store.errors import StoreBusy, StoreUnavailable
from lemon_core.store.postgres_address import PostgresAddress
from lemon_core.store.settled import settled

T = TypeVar("T")
Link = AsyncConnection[tuple[object, ...]]
Work = Callable[[Link], Awaitable[T]]

MAX_LINKS = 8
# How long a statement that is under way at the time limit may still tell its outcome: the server
# ends it at the same limit, and its answer ("nothing was written") is worth a moment.
GRACE_S = 1.0

# Whatever the server's and the role's defaults are: a commit that was confirmed survives a crash,
# the statements are written for this isolation, and a node that stands still holds no row for long.
_SESSION = (
    "SELECT set_config('statement_timeout', %(ms)s, false),"
    " set_config('lock_timeout', %(ms)s, false),"
    " set_config('idle_in_transaction_session_timeout', %(ms)s, false),"
    " set_config('default_transaction_isolation', 'read committed', false),"
    " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)"
)


class PostgresLinks:
    """At most `max_links` connections; one caller at a time on each."""

    def __init__(
        self,
        address: PostgresAddress,
        *,
        timeout_ms: int,
        max_links: int = MAX_LINKS,
        grace_s: float = GRACE_S,
    ) -> None:
        self.address = address
        self._timeout_ms, self._grace_s = timeout_ms, grace_s
        self._slots = anyio.Semaphore(max_links)
        self._idle: list[Link] = []
        self._open = False
        self._active = 0
        self._drained = anyio.Event()

    def open(self) -> None:
        """Take work from now on."""
        self._open = True

    async def close(self) -> None:
        """Finish what was submitted and let go; closing twice is harmless."""
        self._open = False
        self._drained = anyio.Event()
        with anyio.move_on_after(self._timeout_ms / 1000 + self._grace_s, shield=True):
            if self._active:
                await self._drained.wait()
        await self._drop_idle()

    async def run(self, work: Work[T], *, writing: bool) -> T:
        """What `work` gives on a connection of its own.

        Raises `StoreBusy` (nothing was done) or `StoreUnavailable`, with `outcome_unknown` when a
        write was under way. The caller's cancellation waits until the outcome is known.
        """
        if not self._open:
            raise StoreUnavailable("the store is not open")
        self._active += 1
        try:
            return await settled(lambda: self._bounded(work, writing))
        finally:
            self._active -= 1
            if not self._active:
                self._drained.set()

    async def _bounded(self, work: Work[T], writing: bool) -> T:
        limit = anyio.current_time() + self._timeout_ms / 1000
        with anyio.CancelScope(deadline=limit) as waiting:
            await self._slots.acquire()
        if waiting.cancelled_caught:
            raise StoreBusy(f"the database is busy: nothing was done within {self._timeout_ms} ms")
        try:
            link = await self._link(limit)
            return await self._use(link, work, writing, limit + self._grace_s)
        finally:
            self._slots.release()

    async def _use(self, link: Link, work: Work[T], writing: bool, limit: float) -> T:
        try:
            with anyio.CancelScope(deadline=limit):
                return await work(link)
        except psycopg.Error as exc:
            raise self.address.translate(exc, writing=writing) from exc
        finally:
            await self._give_back(link)
        raise StoreUnavailable(
            f"{self.address.label}: no answer within {self._timeout_ms} ms",
            outcome_unknown=writing,
        )

    async def _link(self, limit: float) -> Link:
        if self._idle and not all(map(_is_quiet, self._idle)):
            # A server that ends one session mostly ends them all.
            await self._drop_idle()
        if self._idle:
            return self._idle.pop()
        try:
            with anyio.CancelScope(deadline=limit):
                return await self._connect()
        except psycopg.Error as exc:
            raise self.address.unreachable(exc) from exc
        raise StoreUnavailable(
            f"{self.address.label}: the server did not answer within {self._timeout_ms} ms: "
            "nothing was done"
        )

    async def _connect(self) -> Link:
        link = await AsyncConnection.connect(self.address.conninfo, autocommit=True)
        try:
            await link.execute(_SESSION, {"ms": str(self._timeout_ms)})
        except BaseException:
            await link.close()
            raise
        return link

    async def _give_back(self, link: Link) -> None:
        usable = not link.closed and link.info.transaction_status is TransactionStatus.IDLE
        if usable and self._open:
            self._idle.append(link)
        else:
            await link.close()

    async def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for link in idle:
            await link.close()


def _is_quiet(link: Link) -> bool:
    """False when the server has said something to a session that asked nothing: its end."""
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    return not link.closed and not poll.poll(0)
