"""Where a PostgreSQL database is, and its faults in the store's words; never with the password."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lemon_core.store.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    UnsupportedValue,
)

SCHEMES = ("postgresql://", "postgres://")
_MAX_REASON = 300

# A link that nobody uses is kept up through firewalls, and a peer that is gone is noticed.
_DEFAULTS: dict[str, str] = {
    "application_name": "lemon",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}

_HELD = (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure)
# A session that ended may have committed before; what the server refused it has rolled back.
_ENDED_CLASSES = ("08", "57P")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A parsed URL: what `psycopg` connects with, and the `label` that messages name it by."""

    conninfo: str = field(repr=False)
    password: str | None = field(repr=False)
    label: str

    @classmethod
    def parse(cls, url: str) -> PostgresAddress:
        """Raises `StoreUnavailable` for text that is no PostgreSQL URL."""
        parsed = _parsed(url.strip())
        if parsed is None:
            # Without the cause: the parser's message shows parts of the URL.
            raise StoreUnavailable(
                "the URL of the store is not readable: it is written "
                "postgresql://user:password@host:port/database"
            )
        host = parsed.get("host") or parsed.get("hostaddr") or "the local socket"
        port = parsed.get("port", "")
        name = parsed.get("dbname") or parsed.get("user") or "of this user"
        where = f"{host}:{port}" if port and not host.startswith("/") else host
        conninfo = make_conninfo("", **{**_DEFAULTS, **parsed, "client_encoding": "utf8"})
        return cls(conninfo, parsed.get("password"), f"PostgreSQL database {name} on {where}")

    def unreachable(self, exc: psycopg.Error) -> StoreUnavailable:
        """The word for a connection that could not be made."""
        return StoreUnavailable(
            f"{self.label}: the server cannot be used ({self._reason(exc)}): check that it runs, "
            "and LEMON_STORE_URL or the secret of store.url_secret"
        )

    def translate(self, exc: psycopg.Error, *, writing: bool) -> StoreError:
        """The word for a fault of a statement; `writing` when it may have been committed."""
        state = exc.sqlstate or ""
        if isinstance(exc, _HELD):
            return StoreBusy(f"{self.label}: somebody else holds the row: nothing was written")
        if isinstance(exc, errors.QueryCanceled):
            return StoreBusy(f"{self.label}: it took too long and was given up: nothing was done")
        if isinstance(exc, psycopg.DataError | errors.ProgramLimitExceeded):
            return UnsupportedValue(f"{self.label} cannot keep this ({self._reason(exc)})")
        if isinstance(exc, errors.DataCorrupted | errors.IndexCorrupted):
            return StoreCorrupt(f"{self.label}: {self._reason(exc)}")
        if isinstance(exc, errors.DiskFull):
            return StoreUnavailable(f"{self.label}: the disk is full: nothing was written")
        if isinstance(exc, errors.ReadOnlySqlTransaction):
            return StoreUnavailable(f"{self.label}: read-only: the URL has to name the primary")
        ended = isinstance(exc, psycopg.OperationalError) and (
            not state or state.startswith(_ENDED_CLASSES)
        )
        if ended:
            return StoreUnavailable(
                f"{self.label}: the connection was lost ({self._reason(exc)})",
                outcome_unknown=writing,
            )
        return StoreUnavailable(f"{self.label}: the database refused ({self._reason(exc)})")

    def _reason(self, exc: psycopg.Error) -> str:
        text = exc.diag.message_primary or str(exc)
        # What follows a line break is advice, or the other addresses of the same host.
        text = " ".join(text.partition("\n\t")[0].split()).removeprefix("connection failed: ")
        if self.password:
            # No message of the library has it; a server's or a proxy's might.
            text = text.replace(self.password, "***")
        return text[:_MAX_REASON] or type(exc).__name__


def _parsed(url: str) -> dict[str, str] | None:
    if not url.startswith(SCHEMES):
        return None
    try:
        found = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        return None
    return {name: str(value) for name, value in found.items() if value is not None}
