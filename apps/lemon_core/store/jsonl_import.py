"""Reading an older store, one file of JSON lines for each table, into a SQLite store.

Each line is a change: `{"op": "put" | "delete", "key": …, "value": …, "ts": …}`, and what counts is
what the last change of each key left. A line that cannot be read is passed over with a warning, for
example the last one of a process that was killed. The import can be repeated: without `replace`
what the store has already stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import anyio.to_thread

from lemon_core.clock import Clock, SystemClock
from lemon_core.logs import get_logger
from lemon_core.store.backend import FinishRun, Put, RunRow, Write
from lemon_core.store.codec import Codec, Key, decode_key, encode_key
from lemon_core.store.core import EPHEMERAL_TABLES
from lemon_core.store.errors import StoreError, StoreUnavailable
from lemon_core.store.run_history import encode_summary
from lemon_core.store.run_store import RUNS
from lemon_core.store.sqlite import SqliteBackend
from lemon_core.store.sqlite_file import database_file, reading

log = get_logger("lemon_core.store")

BATCH: Final = 500
"""Rows per commit."""

_OLD_KEYS: Final = "SELECT key_blob FROM lemon_store_kv WHERE table_name=?"
_OLD_RUNS: Final = "SELECT run_id FROM run_history"


@dataclass(frozen=True, slots=True)
class TableCount:
    """What became of one file.

    `lines` were read and `bad_lines` (by number) passed over; of the rows that were left at the end
    `written` went into the store and `kept` were there already. `left_out` rows have no place
    there: a run without a summary. With `skipped` the file was not read, for that reason.
    """

    table: str
    lines: int = 0
    bad_lines: tuple[int, ...] = ()
    written: int = 0
    kept: int = 0
    left_out: int = 0
    skipped: str | None = None


async def migrate_jsonl_to_sqlite(
    src: Path,
    dst: Path,
    *,
    include_runs: bool = False,
    replace: bool = False,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> list[TableCount]:
    """Import the tables below the folder `src` into the store at `dst` (a file or a folder).

    Nobody else may write `dst` meanwhile. `include_runs` takes the summaries of finished runs into
    the run history; `replace` overwrites rows that are there already; `dry_run` counts what would
    be written and touches nothing. Raises `StoreError`: what was written until then stays, and the
    import may be repeated.
    """
    files = await anyio.to_thread.run_sync(_files, src)
    file = database_file(dst)
    if dry_run:
        return [await _import(path, file, None, include_runs, replace) for path in files]
    backend = SqliteBackend(file, clock or SystemClock())
    await backend.open()
    try:
        return [await _import(path, file, backend, include_runs, replace) for path in files]
    finally:
        await backend.close()


def _files(src: Path) -> list[Path]:
    found = sorted(path for path in src.glob("*.jsonl") if path.is_file())
    if not found:
        raise StoreUnavailable(f"{src}: no folder with .jsonl files: name the old store's folder")
    return found


async def _import(
    path: Path, file: Path, backend: SqliteBackend | None, include_runs: bool, replace: bool
) -> TableCount:
    table = path.stem
    if table == RUNS and not include_runs:
        return TableCount(table, skipped="runs are imported on request only")
    if table in EPHEMERAL_TABLES and table != RUNS:
        return TableCount(table, skipped="it described what has ended since")
    content = await anyio.to_thread.run_sync(_read, path)
    rows = _runs(content) if table == RUNS else _puts(table, content)
    there = set() if replace else await anyio.to_thread.run_sync(_there, file, table)
    writes = [write for write in rows if _name(write) not in there]
    if backend is not None:
        for start in range(0, len(writes), BATCH):
            await backend.transaction(writes[start : start + BATCH])
    return TableCount(
        table,
        content.lines,
        tuple(content.bad_lines),
        written=len(writes),
        kept=len(rows) - len(writes),
        left_out=len(content.values) - len(rows),
    )


@dataclass(slots=True)
class _Content:
    """What a file says: the last values, in the order in which they were written."""

    codec: Codec = field(default_factory=Codec)
    values: dict[bytes, object] = field(default_factory=dict)
    times: dict[bytes, int] = field(default_factory=dict)
    lines: int = 0
    bad_lines: list[int] = field(default_factory=list)

    def take(self, line: bytes) -> None:
        """Follow one change; raises ValueError or `StoreError` for what is none."""
        change = self.codec.decode(line)
        if not isinstance(change, Mapping) or change.get("op") not in ("put", "delete"):
            raise ValueError("not a change")
        key = change.get("key")
        raw_key = encode_key(cast(Key, tuple(key) if isinstance(key, list) else key))
        self.values.pop(raw_key, None)
        if change["op"] == "delete":
            return
        if "value" not in change:
            raise ValueError("a put without a value")
        self.codec.encode(change["value"])
        self.values[raw_key] = change["value"]
        ts = change.get("ts")
        self.times[raw_key] = ts if isinstance(ts, int) else 0


def _read(path: Path) -> _Content:
    content = _Content()
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                content.lines += 1
                try:
                    content.take(line)
                except (ValueError, StoreError) as exc:
                    content.bad_lines.append(number)
                    log.warning(
                        "store.import_line_skipped", path=str(path), line=number, reason=str(exc)
                    )
    except OSError as exc:
        raise StoreUnavailable(f"{path}: cannot be read ({exc.strerror})") from exc
    return content


def _puts(table: str, content: _Content) -> Sequence[Put]:
    encode = content.codec.encode
    return [Put(table, key, encode(value)) for key, value in content.values.items()]


def _runs(content: _Content) -> Sequence[FinishRun]:
    return list(_finished(content))


def _finished(content: _Content) -> Iterator[FinishRun]:
    for key, value in content.values.items():
        run_id, record = decode_key(key), value if isinstance(value, Mapping) else {}
        summary, started = record.get("summary"), record.get("started_at")
        if not isinstance(run_id, str) or not isinstance(summary, Mapping):
            continue
        taken = summary.get("duration_ms")
        began = started if isinstance(started, int) else content.times[key]
        ended = began + taken if isinstance(taken, int) else max(began, content.times[key])
        session_key = str(summary.get("session_key") or "")
        encoded = encode_summary(content.codec, summary)
        yield FinishRun(RunRow(run_id, session_key, began, None, ended, encoded))


def _there(file: Path, table: str) -> Collection[object]:
    """What the destination has already: the stored keys of a table, or the ids of runs."""
    if not file.exists():
        return set()
    with reading(file) as db:
        known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if not {"lemon_store_kv", "run_history"} <= known:
            return set()
        if table == RUNS:
            return {run_id for (run_id,) in db.execute(_OLD_RUNS)}
        return {key for (key,) in db.execute(_OLD_KEYS, (table,))}


def _name(write: Write) -> object:
    """What tells whether the row of `write` is there already."""
    match write:
        case Put():
            return write.key
        case FinishRun():
            return write.row.run_id
        case _:
            raise AssertionError("an import only adds")
