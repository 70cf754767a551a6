"""Records of what happened (specification lemon_core 12)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.boot import boot
from lemon_core.idempotency import IDEMPOTENCY
from lemon_core.introspection import (
    INTROSPECTION_LOG,
    MAX_DEPTH,
    PREVIEW_MAX_BYTES,
    REDACTED,
    RETENTION_MS,
    STRING_MAX_BYTES,
    Introspection,
    IntrospectionRecord,
    InvalidRecord,
    redact,
)
from lemon_core.profiles import Profile
from lemon_core.store import (
    ChatStateStore,
    RunStore,
    Store,
    StoreCorrupt,
    StoreSettings,
    open_store,
)
from lemon_core.store.sweeps import SWEEP_INTERVAL_MS, serve_sweeps
from lemon_core.testing import FakeClock, scrubbed_environ, temp_home
from lemon_core.write_behind import RETRY_DELAY_MS, WRITE_DELAY_MS

pytestmark = pytest.mark.anyio

REMOVED = frozenset(
    {"api_key", "apikey", "authorization", "password", "private_key", "prompt", "response"}
    | {"secret", "secrets", "stderr", "stdout", "token"}
)

PAYLOADS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*sorted(REMOVED), "Token", "API_KEY", "input", "preview", "name", "n"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
    async with open_store(StoreSettings("sqlite", tmp_path), clock) as opened:
        yield opened


@pytest.fixture
def log(store: Store, clock: FakeClock) -> Introspection:
    return Introspection(store, clock)


def keys_of(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


@pytest.mark.behaviour("lemon_core.36")
@given(payload=st.dictionaries(st.text(max_size=5), PAYLOADS, max_size=4))
def test_no_secret_survives_at_any_depth(payload: dict[str, object]) -> None:
    clean = redact(payload)
    assert not {key.lower() for key in keys_of(clean)} & REMOVED
    assert redact(clean) == clean


@pytest.mark.behaviour("lemon_core.36")
def test_what_is_removed_redacted_cut_and_kept() -> None:
    secrets: dict[str, object] = {name.upper(): "x" for name in REMOVED}
    tool: dict[str, object] = {
        **secrets,
        "Arguments": {"path": "a"},
        "input": ["a"],
        "tool_arguments": None,
        "preview": "p" * 300,
        "Result_Preview": "p" * 256,
        "name": "bash",
    }
    clean: Any = redact({"steps": [{"deep": (tool,)}], "count": 1, **secrets})
    kept = {
        "Arguments": REDACTED,
        "input": REDACTED,
        "tool_arguments": REDACTED,
        "preview": "p" * 256 + "...[truncated 44 bytes]",
        "Result_Preview": "p" * 256,
        "name": "bash",
    }
    assert clean == {"steps": [{"deep": [kept]}], "count": 1}
    asked: Any = redact(tool, keep_arguments=True)
    assert (asked["Arguments"], asked["input"]) == ({"path": "a"}, ["a"])
    assert redact({"input": {"token": "x", "n": 1}}, keep_arguments=True) == {"input": {"n": 1}}


@pytest.mark.behaviour("lemon_core.36")
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).map(
        lambda text: text * 400
    ),
    name=st.sampled_from(["text", "preview"]),
)
def test_long_text_is_cut_between_characters(text: str, name: str) -> None:
    limit = PREVIEW_MAX_BYTES if name == "preview" else STRING_MAX_BYTES
    cut = redact({name: text})[name]
    assert isinstance(cut, str)
    size = len(text.encode())
    if size <= limit:
        assert cut == text
        return
    kept, _, rest = cut.rpartition("...[truncated ")
    assert text.startswith(kept)
    assert limit - 3 <= len(kept.encode()) <= limit
    assert rest == f"{size - len(kept.encode())} bytes]"


async def test_half_a_surrogate_pair_is_kept_short_or_long(log: Introspection) -> None:
    log.record("odd", {"short": "\ud800", "long": "\ud800" * 5_000})
    (entry,) = await log.query()
    assert str(entry.payload["long"]).endswith("...[truncated 904 bytes]")


async def test_a_record_comes_back_whole(log: Introspection, clock: FakeClock) -> None:
    event_id = log.record(
        "tool_finished",
        {"ok": True},
        run_id="run_1",
        session_key="agent:a:main",
        agent_id="a",
        parent_run_id="run_0",
        engine="lemon",
        provenance="inferred",
    )
    assert event_id is not None
    assert event_id.startswith("evt_")
    assert await log.query() == [
        IntrospectionRecord(
            event_id,
            clock.now_ms(),
            "tool_finished",
            {"ok": True},
            "run_1",
            "agent:a:main",
            "a",
            "run_0",
            "lemon",
            "inferred",
        )
    ]


@pytest.mark.behaviour("lemon_core.36")
async def test_filters_choose_and_the_newest_comes_first(
    log: Introspection, clock: FakeClock
) -> None:
    start = clock.now_ms()
    for number in range(4):
        log.record(
            f"type_{number}",
            {},
            run_id=f"run_{number % 2}",
            session_key=f"agent:{number % 2}:main",
            agent_id=str(number // 2),
        )
        await clock.advance(10)

    async def types(**filters: Any) -> list[int]:
        return [int(entry.event_type[-1]) for entry in await log.query(**filters)]

    assert await types() == [3, 2, 1, 0]
    assert await types(run_id="run_1") == [3, 1]
    assert await types(session_key="agent:0:main") == [2, 0]
    assert await types(agent_id="1") == [3, 2]
    assert await types(event_type="type_2") == [2]
    assert await types(event_type=["type_0", "type_3"]) == [3, 0]
    assert await types(event_type=[]) == []
    assert await types(since_ms=start + 10, until_ms=start + 20) == [2, 1]
    assert await types(run_id="run_1", agent_id="0") == [1]
    assert await types(run_id="run_1", limit=1) == [3]


@pytest.mark.behaviour("lemon_core.36")
@pytest.mark.parametrize(("limit", "count"), [(-5, 1), (0, 1), (1, 1), (9_999, 1_000)])
async def test_the_limit_is_clamped(log: Introspection, limit: int, count: int) -> None:
    for _ in range(1_001):
        log.record("tick", {})
    assert len(await log.query(limit=limit)) == count


async def test_a_hundred_records_are_the_answer_without_a_limit(log: Introspection) -> None:
    for _ in range(101):
        log.record("tick", {})
    assert len(await log.query()) == 100


@pytest.mark.behaviour("lemon_core.36")
async def test_disabled_it_records_nothing(store: Store, clock: FakeClock) -> None:
    log = Introspection(store, clock, enabled=False)
    assert log.record("tick", {}) is None
    assert await log.query() == []
    assert await store.list(INTROSPECTION_LOG) == []


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"n": value}
    return value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"event_type": ""}, "event type is text"),
        ({"event_type": 1}, "event type is text"),
        ({"payload": ["a"]}, "is a map"),
        ({"payload": {1: "a"}}, "key is text"),
        ({"payload": {"a": object()}}, "JSON values"),
        ({"payload": {"a": b"x"}}, "JSON values"),
        ({"payload": {"a": [float("nan")]}}, "JSON values"),
        ({"payload": nested(MAX_DEPTH + 2)}, "levels deep"),
        ({"run_id": 1}, "run_id of tick is text"),
        ({"engine": b"lemon"}, "engine of tick is text"),
        ({"provenance": "guessed"}, "provenance of tick"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_invalid_record_raises_at_the_caller(
    log: Introspection, change: dict[str, object], message: str
) -> None:
    fields: dict[str, Any] = {"event_type": "tick", "payload": {}, **change}
    with pytest.raises(InvalidRecord, match=message):
        log.record(fields.pop("event_type"), fields.pop("payload"), **fields)
    assert await log.query() == []


async def test_records_are_written_together_a_moment_later(clock: FakeClock) -> None:
    commits: list[int] = []
    async with open_store(StoreSettings(), clock) as store:

        class Counted(Store):
            async def transaction(self, writes: Any) -> None:
                commits.append(len(writes))
                await super().transaction(writes)

        log = Introspection(Counted(store.backend), clock)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(log.serve)
                for expected in ([3], [3, 3]):
                    for _ in range(3):
                        log.record("tick", {})
                    await clock.wait_for_sleepers()
                    await clock.advance(WRITE_DELAY_MS - 1)
                    assert len(commits) < len(expected)
                    await clock.advance(1)
                    assert commits == expected
                tasks.cancel_scope.cancel()


async def test_a_failed_write_is_tried_again_and_the_queue_is_bounded(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(StoreSettings(), clock) as store:
        log = Introspection(store, clock, max_queued=2)
        await store.backend.close()
        assert [log.record("tick", {}) is None for _ in range(3)] == [False, False, True]
        with anyio.fail_after(5), caplog.at_level(logging.WARNING, logger="lemon"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(log.serve)
                await clock.wait_for_sleepers()
                await clock.advance(WRITE_DELAY_MS)
                await store.backend.open()
                await clock.advance(RETRY_DELAY_MS + WRITE_DELAY_MS)
                tasks.cancel_scope.cancel()
        assert len(await store.list(INTROSPECTION_LOG)) == 2
    told = [record.message for record in caplog.records]
    assert told == ["introspection.not_written", "introspection.dropped"]


@pytest.mark.behaviour("lemon_core.25")
async def test_the_sweeps_keep_seven_days(clock: FakeClock) -> None:
    async with open_store(StoreSettings(), clock) as store:
        log = Introspection(store, clock)
        log.record("old", {})
        await clock.advance(SWEEP_INTERVAL_MS)
        log.record("new", {})
        await log.flush()
        await clock.advance(RETENTION_MS - 2 * SWEEP_INTERVAL_MS)
        sweeps = {INTROSPECTION_LOG: log.sweep}
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                runs, chat = RunStore(store, clock), ChatStateStore(store, clock)
                tasks.start_soon(serve_sweeps, runs, chat, clock, sweeps)
                await clock.wait_for_sleepers()
                await clock.advance(SWEEP_INTERVAL_MS)
                assert [entry.event_type for entry in await log.query()] == ["new", "old"]
                await clock.advance(SWEEP_INTERVAL_MS)
                assert [entry.event_type for entry in await log.query()] == ["new"]
                tasks.cancel_scope.cancel()


@pytest.mark.parametrize("key", ["text", ("evt", 1)])
async def test_a_damaged_key_is_corrupt(
    log: Introspection, store: Store, key: str | tuple[str, int]
) -> None:
    await store.put(INTROSPECTION_LOG, key, {})
    with pytest.raises(StoreCorrupt, match="damaged key"):
        await log.query()


@pytest.fixture
def restored_tree() -> Iterator[None]:
    """Boot configures the process's logger tree; other tests want it as it was."""
    root = logging.getLogger("lemon")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.behaviour("lemon_core.36")
@pytest.mark.usefixtures("restored_tree")
@pytest.mark.parametrize("enabled", [True, False])
async def test_a_runtime_keeps_its_records_unless_disabled(enabled: bool) -> None:
    """Configuration `introspection.enabled`; what is queued at the end is written."""
    with temp_home() as paths, anyio.fail_after(5):
        for events in ([], ["one"] if enabled else []):
            async with boot(
                Profile("test"),
                cwd=paths.home,
                environ=scrubbed_environ(paths.home),
                paths=paths,
                serve=False,
                overrides={"introspection": {"enabled": enabled}},
            ) as runtime:
                found = await runtime.introspection.query()
                assert [entry.event_type for entry in found] == events
                runtime.introspection.record("one", {})


@pytest.mark.behaviour("lemon_core.25")
@pytest.mark.usefixtures("restored_tree")
async def test_a_runtime_sweeps_both_tables(clock: FakeClock) -> None:
    with temp_home() as paths, anyio.fail_after(5):
        async with boot(
            Profile("test"),
            cwd=paths.home,
            environ=scrubbed_environ(paths.home),
            paths=paths,
            serve=False,
            overrides={"store": {"backend": "memory"}},
            clock=clock,
        ) as runtime:
            runtime.introspection.record("one", {})
            await runtime.introspection.flush()
            await runtime.idempotency.put("s", "k", 1)
            await clock.wait_for_sleepers()
            clock.set_wall(clock.now_ms() + RETENTION_MS)
            await clock.advance(SWEEP_INTERVAL_MS)
            assert await runtime.store.list(INTROSPECTION_LOG) == []
            assert await runtime.store.list(IDEMPOTENCY) == []
