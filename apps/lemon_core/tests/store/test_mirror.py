"""Mirrored tables (specification lemon_core 8.1, read cache)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import orjson
import pytest

from lemon_core.store import Store, StoreUnavailable
from lemon_core.store.backend import Rows, Write
from lemon_core.store.errors import StoreError
from lemon_core.store.memory import MemoryBackend
from lemon_core.store.mirror import Mirror

pytestmark = pytest.mark.anyio


class Flaky(MemoryBackend):
    """Counts reads; refuses or loses track of writes when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.refusal: StoreError | None = None
        self.apply_anyway = False

    async def get(self, table: str, key: bytes) -> bytes | None:
        self.reads += 1
        return await super().get(table, key)

    async def list(self, table: str) -> Rows:
        self.reads += 1
        return await super().list(table)

    async def transaction(self, writes: Sequence[Write]) -> None:
        if self.refusal is None or self.apply_anyway:
            await super().transaction(writes)
        if self.refusal is not None:
            raise self.refusal


@pytest.fixture
async def flaky() -> Flaky:
    return Flaky()


@pytest.fixture
async def mirrored(flaky: Flaky) -> Store:
    store = Store(flaky)
    await store.open()
    flaky.reads = 0
    return store


@pytest.mark.behaviour("lemon_core.23")
async def test_a_refused_write_leaves_no_trace_in_the_mirror(mirrored: Store, flaky: Flaky) -> None:
    await mirrored.put("chat", "s", "old")
    flaky.refusal = StoreUnavailable("no")
    for write in (mirrored.put("chat", "s", "new"), mirrored.delete("chat", "s")):
        with pytest.raises(StoreUnavailable):
            await write
    assert await mirrored.get("chat", "s") == "old"
    assert await mirrored.list("chat") == [("s", "old")]
    assert flaky.reads == 0


async def test_an_unknown_outcome_is_read_from_the_backend(mirrored: Store, flaky: Flaky) -> None:
    await mirrored.put("chat", "s", "old")
    flaky.refusal, flaky.apply_anyway = StoreUnavailable("?", outcome_unknown=True), True
    with pytest.raises(StoreUnavailable):
        await mirrored.put("chat", "s", "new")
    assert await mirrored.get("chat", "s") == "new"
    assert await mirrored.list("chat") == [("s", "new")]
    assert flaky.reads == 2
    flaky.refusal = None
    await mirrored.put("chat", "s", "newer")
    assert await mirrored.get("chat", "s") == "newer"
    assert flaky.reads == 2


@pytest.mark.behaviour("lemon_core.23")
async def test_a_registered_table_is_warm_before_use(mirrored: Store, flaky: Flaky) -> None:
    await mirrored.put("things", "k", 1)
    await mirrored.register_cached_table("things")
    flaky.reads = 0
    assert await mirrored.get("things", "k") == 1
    assert await mirrored.get("things", "absent") is None
    assert await mirrored.list("things") == [("k", 1)]
    await mirrored.compare_and_swap("things", "k", 1, 2)
    assert await mirrored.take("things", "k") == 2
    assert await mirrored.list("things") == []
    assert flaky.reads == 0


async def test_what_a_caller_changes_does_not_change_the_store(mirrored: Store) -> None:
    value = {"list": [1]}
    await mirrored.put("chat", "s", value)
    value["list"].append(2)
    got = await mirrored.get("chat", "s")
    assert got == {"list": [1]}


def test_a_write_during_the_fill_is_not_lost() -> None:
    mirror = Mirror(["t"])
    mirror.start_fill("t")
    mirror.set("t", b"new", b"1")
    mirror.set("t", b"gone", None)
    mirror.fill("t", [(b"gone", b"0"), (b"old", b"0")])
    assert mirror.rows("t") == [(b"new", b"1"), (b"old", b"0")]


def test_a_table_that_grows_too_large_is_no_longer_mirrored() -> None:
    mirror = Mirror(["t"], max_rows=2)
    mirror.start_fill("t")
    mirror.fill("t", [(b"1", b""), (b"2", b"")])
    assert mirror.knows("t", b"3")
    mirror.set("t", b"3", b"")
    assert not mirror.knows("t", b"3")
    assert mirror.rows("t") is None


def test_what_is_mirrored_takes_the_room_of_its_bytes() -> None:
    """orjson's bytes keep a buffer of 4 kB each, and a mirror may have twenty thousand rows."""
    mirror = Mirror(["t"])
    mirror.start_fill("t")
    mirror.fill("t", [(b"a", b"1")])
    tracemalloc.start()
    try:
        for number in range(200):
            mirror.set("t", orjson.dumps(number), orjson.dumps({"number": number}))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(mirror.rows("t") or ()) == 201
    assert size < 200 * 500
