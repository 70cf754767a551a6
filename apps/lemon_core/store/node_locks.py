"""What one node holds among the nodes of a shared store: its own name, and keys of sessions.

All of it hangs on one connection, and the database frees it together when that dies. So a key that
is free was given back, or its holder is dead. The statement that takes a key therefore asks too
whether one of the other nodes is dead, and whether a run of the session has begun and has no end:
then the new holder must look first at what the old one left.

Keys that are held cost nothing to use. A new one costs one journey, which all keys asked for at the
same time share. Who finds a key taken tells its holder so (`NOTIFY`), and is told when it is free;
a schedule of one second stands in for what nobody tells, the holder's death.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, Never

import anyio
import psycopg
from anyio.abc import TaskStatus
from psycopg import Notify

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store.advisory import lock_number, locked, place_of
from lemon_core.store.errors import StoreError
from lemon_core.store.postgres_address import PostgresAddress
from lemon_core.store.postgres_links import Link
from lemon_core.util import capped_backoff
from lemon_core.waiting import first_of

log = get_logger("lemon_core.store.node_locks")

AGAIN_MS: Final = 1_000
RETRY_BASE_MS: Final = 100
RETRY_MAX_MS: Final = 500
"""Short: after a restart of the server the others must not take this node for dead for long."""
CHANNEL: Final = "lemon_nodes"
MAX_TOLD_BYTES: Final = 7_000

_TAKE: Final = """
SELECT number, pg_try_advisory_lock(number),
 EXISTS (SELECT FROM run_history WHERE session_key=key AND finished_at_ms IS NULL)
FROM unnest(%(numbers)s::bigint[], %(keys)s::text[]) AS asked(number, key)
UNION ALL
SELECT number, NULL, NULL FROM unnest(%(nodes)s::bigint[]) AS number
WHERE pg_try_advisory_xact_lock_shared(number)
"""
_GIVE: Final = "SELECT pg_advisory_unlock(number) FROM unnest(%(keys)s::bigint[]) AS number"
_TELL: Final = "SELECT pg_notify(%(channel)s, word) FROM unnest(%(words)s::text[]) AS word"


Answer = Literal["ours", "ours_with_open_run", "ours_beside_dead", "elsewhere"]
"""What came of asking for a session.

`ours_with_open_run`: it is held here, but a run of it has a begin mark and no end: it may go on.
`ours_beside_dead`: it is held here, but another node is dead, and may have left work in it; look
for that, then `know` the node no more.
"""


@dataclass(slots=True)
class _Ask:
    """A wish for a key, shared by all who have it.

    `dead` tells of nodes that died, `open` of a run without an end.
    """

    key: str
    answered: anyio.Event = field(default_factory=anyio.Event)
    taken: bool = False
    open: bool = False
    dead: bool = False


@dataclass(slots=True)
class Watch:
    """Who is told of what happens to keys; none of these waits.

    `wanted` hears that another node wants a key that is held here. `renewed` hears that the
    connection was made again after one that died, and which keys were lost meanwhile. `told` hears
    what another node has said.
    """

    wanted: Callable[[str], None] = field(default=lambda key: None)
    renewed: Callable[[Collection[str]], None] = field(default=lambda lost: None)
    told: Callable[[str], None] = field(default=lambda text: None)


class NodeLocks:
    """The name of one node (`kind:id`) and its keys at `address`, while `serve` runs."""

    def __init__(self, address: PostgresAddress, kind: str, node_id: str, clock: Clock) -> None:
        self.watch = Watch()
        self.connected = False
        """False while nobody can say whether what was held still is."""
        self._kind, self._node_id, self._name = kind, node_id, f"{kind}:{node_id}"
        self._address, self._clock = address, clock
        self._place = ""
        self._held: dict[int, str] = {}
        self._asked: dict[int, _Ask] = {}
        self._check: _Ask | None = None
        self._given: list[int] = []
        self._words: list[str] = []
        self._freed: dict[int, anyio.Event] = {}
        self._nodes: set[int] = set()
        self._wake = anyio.Event()

    # For the node

    def holds(self, key: str) -> bool:
        """True while this node has the key."""
        return self._number(key) in self._held

    async def attempt(self, key: str) -> Answer:
        """Ask for the key once."""
        ask = self._ask(key)
        await ask.answered.wait()
        if not ask.taken:
            return "elsewhere"
        if ask.dead:
            return "ours_beside_dead"
        return "ours_with_open_run" if ask.open else "ours"

    async def take(self, key: str) -> Answer:
        """As `attempt`, but it returns when the key is ours, however long another node keeps it."""
        while (answer := await self.attempt(key)) == "elsewhere":
            await self.freed(key)
        return answer

    async def freed(self, key: str) -> None:
        """Tell the key's holder that it is wanted; return when it is worth asking again."""
        number = self._number(key)
        self._say(f"want {number}")
        free = self._freed.setdefault(number, anyio.Event())
        try:
            await first_of(free.wait, partial(self._clock.sleep, AGAIN_MS))
        finally:
            self._freed.pop(number, None)

    def give(self, key: str, *, tell: bool = False) -> None:
        """Let go of a key; `tell` those who want it."""
        number = self._number(key)
        if self._held.pop(number, None) is not None:
            self._given.append(number)
            if tell:
                self._words.append(f"free {number}")
            self._wake.set()

    async def others_dead(self) -> bool:
        """True when one of the nodes that are `known` is dead now."""
        if not self._nodes:
            return False
        if self._check is None:
            self._check = _Ask("")
        check = self._check
        self._wake.set()
        await check.answered.wait()
        return check.dead

    @property
    def known(self) -> frozenset[int]:
        """The other nodes whose death is noticed when a key is taken."""
        return frozenset(self._nodes)

    def know(self, node_ids: Iterable[str], *, instead_of: frozenset[int] = frozenset()) -> None:
        """Know these nodes of this kind, and of those `instead_of` no others.

        Nodes that announce themselves are known too.
        """
        numbers = {self._node_number(node_id) for node_id in node_ids}
        self._nodes = (self._nodes - instead_of) | numbers
        self._nodes.discard(self._node_number(self._node_id))

    def tell(self, text: str) -> None:
        """Say something to all other nodes of this kind; who is not connected does not hear it.

        Raises `ValueError` for more than the server passes on.
        """
        if len(text.encode()) > MAX_TOLD_BYTES:
            raise ValueError(f"{len(text)} characters are too many for a notification")
        self._say(f"tell {self._number('what is told')} {text}")

    def announce(self) -> None:
        """Have every other node `know` this one."""
        self._say(f"node {self._node_number(self._node_id)}")

    # Serving

    async def serve(self, *, task_status: TaskStatus[StoreError | None]) -> None:
        """Keep the connection, and do what is asked for, until cancelled.

        Started with None when the name is held, or with what kept it from that, and then it ends.
        """
        attempt, started = 0, False
        while True:
            try:
                async with locked(self._address, self._name) as link:
                    attempt = 0
                    await self._begin(link)
                    if not started:
                        started = True
                        task_status.started(None)
                    try:
                        await self._work(link)
                    finally:
                        self.connected = False
            except psycopg.Error as exc:
                if not started:
                    task_status.started(self._address.translate(exc, writing=False))
                    return
                log.warning("node_locks.connection_lost", name=self._name, error=str(exc))
            except StoreError as exc:
                if not started:
                    task_status.started(exc)
                    return
                log.warning("node_locks.not_held", name=self._name, error=str(exc))
            await self._clock.sleep(capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS))
            attempt += 1

    async def _begin(self, link: Link) -> None:
        """Listen, and take again what was held on the connection before."""
        self._place = await place_of(link)
        link.add_notify_handler(partial(self._hear, link.info.backend_pid))
        await link.execute(f"LISTEN {CHANNEL}")
        # They ended with the connection before; what was asked for on it has no answer yet.
        self._given.clear()
        self._wake.set()
        before = dict(self._held)
        taken, _ = await self._taken(link, before)
        self._held = {number: key for number, key in before.items() if number in taken}
        self.connected = True
        self.watch.renewed([key for number, key in before.items() if number not in taken])

    async def _work(self, link: Link) -> Never:
        """Do what is asked for as it comes; raises `psycopg.Error` when the connection ends."""
        while True:
            if not self._wake.is_set():
                # One at a time: psycopg waits for the same file while a statement is under way.
                await first_of(self._wake.wait, partial(anyio.wait_readable, link.fileno()))
            self._wake = anyio.Event()
            _read(link)
            # In this order: a key that is given and wanted again is free for others in between.
            await self._give_back(link)
            await self._tell(link)
            await self._answer(link)

    async def _give_back(self, link: Link) -> None:
        if self._given:
            given, self._given = self._given, []
            await link.execute(_GIVE, {"keys": given})

    async def _tell(self, link: Link) -> None:
        if self._words:
            words, self._words = self._words, []
            await link.execute(_TELL, {"channel": CHANNEL, "words": words})

    async def _answer(self, link: Link) -> None:
        asked, check = dict(self._asked), self._check
        if not asked and check is None:
            return
        keys = {number: ask.key for number, ask in asked.items()}
        taken, dead = await self._taken(link, keys)
        if check is not None:
            self._check, check.dead = None, dead
            check.answered.set()
        for number, ask in asked.items():
            del self._asked[number]
            ask.taken, ask.open, ask.dead = number in taken, taken.get(number, False), dead
            if ask.taken:
                self._held[number] = ask.key
            ask.answered.set()

    async def _taken(self, link: Link, keys: Mapping[int, str]) -> tuple[dict[int, bool], bool]:
        """Which keys could be had, each with whether it has an open run; and whether another node
        is dead."""
        asked = {"numbers": list(keys), "keys": list(keys.values()), "nodes": list(self._nodes)}
        rows = await (await link.execute(_TAKE, asked)).fetchall()
        taken = {int(str(number)): open_run is True for number, had, open_run in rows if had}
        return taken, any(had is None for _, had, _ in rows)

    # Small things

    def _ask(self, key: str) -> _Ask:
        number = self._number(key)
        if number in self._held:
            ask = _Ask(key, taken=True)
            ask.answered.set()
            return ask
        self._wake.set()
        return self._asked.setdefault(number, _Ask(key))

    def _say(self, word: str) -> None:
        self._words.append(word)
        self._wake.set()

    def _hear(self, own_pid: int, notify: Notify) -> None:
        """What another node says."""
        match notify.payload.split(" ", 2):
            case [word, text, *rest] if notify.pid != own_pid and _is_number(text):
                number = int(text)
            case _:
                return
        if word == "tell" and number == self._number("what is told"):
            self.watch.told("".join(rest))
        elif word == "want" and number in self._held:
            self.watch.wanted(self._held[number])
        elif word == "free" and number in self._freed:
            self._freed[number].set()
        elif word == "node" and number != self._node_number(self._node_id):
            self._nodes.add(number)

    def _number(self, key: str) -> int:
        return lock_number(self._place, f"{self._kind} has {key}")

    def _node_number(self, node_id: str) -> int:
        return lock_number(self._place, f"{self._kind}:{node_id}")


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _read(link: Link) -> None:
    """Take in what the server has said by itself: notifications, or its end (`psycopg.Error`)."""
    link.pgconn.consume_input()
    while (said := link.pgconn.notifies()) is not None:
        if link.pgconn.notify_handler is not None:
            link.pgconn.notify_handler(said)
