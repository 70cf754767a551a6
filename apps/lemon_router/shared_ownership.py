"""The sessions that this router holds of a shared store: taking, giving, and who died.

`ownership.py` tells what this is for.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store import Store, StoreError
from lemon_core.store.rows import parse_row
from lemon_core.waiting import first_of
from lemon_router.ownership import End, Owner

if TYPE_CHECKING:
    from lemon_core.store.node_locks import Answer, NodeLocks

log = get_logger("lemon_router.ownership")

NODES: Final = "router_nodes"
"""The routers that may have left work: a row from a router's start until all it left is adopted."""
ANSWER_MS: Final = 1_000
"""How long a message waits for a lock's first answer before it is told that it is queued."""
RETRY_MS: Final = 1_000
WATCH_MS: Final = 1_000
CONFIRM_MS: Final = 1_000
STOP_S: Final = 1.0
MAX_IDLE: Final = 500
"""So many sessions that nobody uses are kept: the server's table of locks has some thousand places
(`max_locks_per_transaction` for each of `max_connections`)."""
YIELD_MS: Final = 200
"""The start that another router has for a session that was given to it."""


class SharedOwnership:
    """The sessions that this router holds of a shared store; `tasks` owns what waits for others.

    A router that is `watching` adopts what dead ones left as soon as it sees that they are dead;
    others do so when they take a session.
    """

    def __init__(
        self,
        locks: NodeLocks,
        store: Store,
        clock: Clock,
        tasks: TaskGroup,
        *,
        router_id: str,
        idle_ms: int,
        watching: bool = False,
        alive: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._locks, self._store, self._clock, self._tasks = locks, store, clock, tasks
        self._router_id, self._idle_ms, self._alive = router_id, idle_ms, alive
        self._watching = watching
        self._owner: Owner | None = None
        self._owned: set[str] = set()
        self._idle_since: dict[str, int] = {}
        self._wanted: set[str] = set()
        self._yielded: set[str] = set()
        self._asking: dict[str, anyio.Event] = {}
        self._idles = anyio.Event()
        self._looking, self._looks = anyio.Lock(), 0
        # How many times the connection was lost without having looked yet what that has cost.
        self._doubts = 0

    # Runs

    def claim(self, session_key: str) -> bool:
        """See `Ownership`."""
        if self._doubts or not self._locks.connected:
            return False  # until it is known what others have taken: `_on_renewed`
        if session_key not in self._owned:
            self.ask(session_key)
            return False
        self._idle_since.pop(session_key, None)
        return True

    def ask(self, session_key: str) -> None:
        """See `Ownership`."""
        if session_key not in self._owned and session_key not in self._asking:
            self._asking[session_key] = anyio.Event()
            self._tasks.start_soon(self._acquire, session_key)

    async def answered(self, session_key: str) -> None:
        """See `Ownership`."""
        answered = self._asking.get(session_key)
        if answered is not None:
            await first_of(answered.wait, partial(self._clock.sleep, ANSWER_MS))

    async def take(self, session_key: str) -> None:
        """See `Ownership`."""
        await self._locks.take(session_key)
        self._keep(session_key)

    def run_over(self, session_key: str) -> None:
        """See `Ownership`."""
        if session_key in self._wanted:
            self._yielded.add(session_key)
            self._give(session_key, tell=True)
        elif session_key in self._owned:
            self._rest(session_key)

    def end_elsewhere(self, end: End) -> None:
        """See `Ownership`; a router that is not connected just now does not hear it."""
        try:
            self._locks.tell(json.dumps(asdict(end)))
        except ValueError as exc:
            log.warning("ownership.not_told", error=str(exc))

    def _on_told(self, text: str) -> None:
        try:
            end = parse_row(End, json.loads(text), "what another router said")
        except (ValueError, StoreError) as exc:
            log.warning("ownership.not_understood", error=str(exc))
        else:
            self._the_owner.abort_here(end)

    # Taking and giving

    async def _acquire(self, session_key: str) -> None:
        """Get the session, and then start what waits for it."""
        answered, doubtful = self._asking[session_key], False
        try:
            if session_key in self._yielded:
                answered.set()
                self._yielded.discard(session_key)
                await self._clock.sleep(YIELD_MS)
            while True:
                answer = await self._attempted(session_key, answered)
                # A doubt stays until it was looked at: the router in question may be back by now.
                doubtful = doubtful or answer != "ours"
                if not doubtful or await self._is_free(session_key, answer):
                    break
                await self._clock.sleep(RETRY_MS)
            self._keep(session_key)
        finally:
            answered.set()
            del self._asking[session_key]
        self._the_owner.release_held()

    async def _attempted(self, session_key: str, answered: anyio.Event) -> Answer:
        """The answer when the lock is held, however long that takes."""
        while (answer := await self._locks.attempt(session_key)) == "elsewhere":
            answered.set()
            await self._locks.freed(session_key)
        if answer == "ours_beside_dead":
            answered.set()
        return answer

    async def _is_free(self, session_key: str, answer: Answer) -> bool:
        """False when a run of another router may still be going on, and when that cannot be told
        now; then the lock is given back."""
        try:
            if answer == "ours_beside_dead" and await self._still_dead():
                await self._look_after_the_dead()
            free = not await self._the_owner.runs_elsewhere(session_key)
        except StoreError as exc:
            log.warning("ownership.cannot_tell", session_key=session_key, error=str(exc))
            free = False
        if not free and session_key not in self._owned:
            self._locks.give(session_key, tell=True)
        return free

    async def _still_dead(self) -> bool:
        """Once may be a database that restarted and a router that has not connected again."""
        await self._clock.sleep(CONFIRM_MS)
        return await self._locks.others_dead()

    def _keep(self, session_key: str) -> None:
        if self._locks.holds(session_key):
            self._owned.add(session_key)
            self._rest(session_key)

    def _give(self, session_key: str, *, tell: bool) -> None:
        self._owned.discard(session_key)
        self._wanted.discard(session_key)
        self._idle_since.pop(session_key, None)
        self._locks.give(session_key, tell=tell)

    def _rest(self, session_key: str) -> None:
        """Nothing of the session runs, until `claim` says otherwise."""
        self._idle_since.pop(session_key, None)  # to the end: the oldest is in front
        self._idle_since[session_key] = self._clock.monotonic_ms()
        self._idles.set()
        if len(self._idle_since) > MAX_IDLE:
            self._give_idle(next(iter(self._idle_since)))

    def _on_wanted(self, session_key: str) -> None:
        if session_key not in self._owned:
            return  # being looked at, or given back already
        if self._the_owner.is_active(session_key):
            self._wanted.add(session_key)
        else:
            self._give(session_key, tell=True)

    # The other routers

    @asynccontextmanager
    async def of(self, owner: Owner) -> AsyncIterator[None]:
        """Work for `owner` for the block, and be known to the others. Raises `StoreError`."""
        self._owner = owner
        await self._start()
        try:
            yield
        finally:
            with anyio.move_on_after(STOP_S, shield=True):
                await self._stop()

    async def _start(self) -> None:
        self._locks.watch.wanted = self._on_wanted
        self._locks.watch.renewed = self._on_renewed
        self._locks.watch.told = self._on_told
        await self._announce()
        self._locks.know([str(node_id) for node_id, _ in await self._store.load_all(NODES)])
        self._tasks.start_soon(self._serve_idle)
        if self._watching:
            self._tasks.start_soon(self._serve_watch)

    async def _stop(self) -> None:
        """Be known no more, if nothing was left."""
        try:
            if self._router_id not in await self._the_owner.left_by():
                await self._store.delete(NODES, self._router_id)
        except StoreError as exc:
            # The others find out that nothing is left when they see that this router is gone.
            log.warning("ownership.still_known", error=str(exc))

    async def _announce(self) -> None:
        """The row is there before the first session is taken."""
        await self._store.put(NODES, self._router_id, {"started_at_ms": self._clock.now_ms()})
        self._locks.announce()

    async def _look_after_the_dead(self) -> None:
        """Adopt what dead routers left, and know no more those that left nothing."""
        looks = self._looks
        async with self._looking:
            if self._looks == looks:  # else somebody has just done so
                self._looks += 1
                await self._adopt()

    async def _adopt(self) -> None:
        before = self._locks.known
        await self._the_owner.adopt()
        left = await self._the_owner.left_by()
        known = []
        for key, _ in await self._store.load_all(NODES):
            node_id = str(key)
            if node_id in left or node_id == self._router_id or await self._alive(node_id):
                known.append(node_id)
            else:
                await self._store.delete(NODES, node_id)
        self._locks.know(known, instead_of=before)

    def _on_renewed(self, lost: Collection[str]) -> None:
        """For a moment the others took this router for dead."""
        log.warning("ownership.renewed", lost=len(lost))
        for session_key in lost:
            self._owned.discard(session_key)
            self._wanted.discard(session_key)
            self._idle_since.pop(session_key, None)
        self._doubts += 1
        self._tasks.start_soon(self._recheck, lost)

    async def _recheck(self, lost: Collection[str]) -> None:
        while True:
            try:
                await self._announce()
                await self._the_owner.let_go_of_others()
            except StoreError as exc:
                log.warning("ownership.cannot_tell", error=str(exc))
            else:
                break
            await self._clock.sleep(RETRY_MS)
        for session_key in filter(self._the_owner.is_active, lost):
            # Whoever has it by now sees that a run is going on, and gives it back.
            self.ask(session_key)
        self._doubts -= 1
        self._the_owner.release_held()

    async def _serve_idle(self) -> None:
        """Give back sessions that nobody uses."""
        while True:
            self._idles = anyio.Event()
            if not self._idle_since:
                await self._idles.wait()
                continue
            session_key, since = next(iter(self._idle_since.items()))
            due_ms = since + self._idle_ms - self._clock.monotonic_ms()
            if due_ms > 0:
                await self._clock.sleep(due_ms)
            else:
                self._give_idle(session_key)

    def _give_idle(self, session_key: str) -> None:
        if self._the_owner.is_active(session_key):
            self._idle_since.pop(session_key)
        else:
            self._give(session_key, tell=False)

    async def _serve_watch(self) -> None:
        """Go on with the runs of routers that have died, also when nobody sends anything."""
        while True:
            # The database has no event for a lock that becomes free; this is the schedule.
            await self._clock.sleep(WATCH_MS)
            if await self._locks.others_dead() and await self._still_dead():
                try:
                    await self._look_after_the_dead()
                except StoreError as exc:
                    log.warning("ownership.cannot_adopt", error=str(exc))

    @property
    def _the_owner(self) -> Owner:
        assert self._owner is not None, "of() comes first"
        return self._owner
