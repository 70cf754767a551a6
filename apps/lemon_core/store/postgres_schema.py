"""The tables in PostgreSQL: those of the SQLite file, made once by whichever node comes first."""

from __future__ import annotations

from psycopg import AsyncConnection

from lemon_core.store.errors import StoreCorrupt, StoreTooNew

FORMAT = 1
"""Version of the tables below; a higher one in the database means that a newer Lemon wrote it."""

# "lemon" as bytes. Held while tables are made: `IF NOT EXISTS` alone lets two nodes collide.
_SCHEMA_LOCK = 0x6C656D6F6E

# Text is compared by bytes, as in the other backends, whatever the database's language is. The
# sequence tells which of two writes came later: the clocks of several nodes cannot.
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS lemon_store_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE SEQUENCE IF NOT EXISTS lemon_store_writes",
    "CREATE TABLE IF NOT EXISTS lemon_store_kv ("
    ' table_name TEXT COLLATE "C" NOT NULL, key_blob BYTEA NOT NULL, value_blob BYTEA NOT NULL,'
    " updated_at_ms BIGINT NOT NULL, write_number BIGINT NOT NULL, write_place INTEGER NOT NULL,"
    " PRIMARY KEY (table_name, key_blob))",
    "CREATE TABLE IF NOT EXISTS run_history ("
    ' run_id TEXT COLLATE "C" PRIMARY KEY, session_key TEXT COLLATE "C" NOT NULL,'
    " started_at_ms BIGINT NOT NULL, digest BYTEA, finished_at_ms BIGINT, summary_blob BYTEA)",
    "CREATE INDEX IF NOT EXISTS run_history_session"
    " ON run_history (session_key, started_at_ms, run_id, finished_at_ms)",
    "CREATE INDEX IF NOT EXISTS run_history_age ON run_history (started_at_ms)",
)


async def prepare(link: AsyncConnection[tuple[object, ...]], label: str) -> None:
    """Create the tables, or refuse those of a newer version before anything is touched."""
    if await _is_current(link, label):
        return
    async with link.transaction():
        await link.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
        if await _is_current(link, label):
            return
        for statement in _SCHEMA:
            await link.execute(statement)
        await link.execute(
            "INSERT INTO lemon_store_meta VALUES ('format', %s)"
            " ON CONFLICT (name) DO UPDATE SET value=excluded.value",
            (str(FORMAT),),
        )


async def _is_current(link: AsyncConnection[tuple[object, ...]], label: str) -> bool:
    table = await (await link.execute("SELECT to_regclass('lemon_store_meta')::text")).fetchone()
    if table is None or table[0] is None:
        return False
    rows = await link.execute("SELECT value FROM lemon_store_meta WHERE name='format'")
    found = await rows.fetchone()
    if found is None:
        return False
    version = str(found[0])
    if not version.isdecimal():
        raise StoreCorrupt(f"{label}: its format version reads {version!r}")
    if int(version) > FORMAT:
        raise StoreTooNew(label, int(version), FORMAT, instead="name another database")
    return int(version) == FORMAT
