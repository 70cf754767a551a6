"""Identifiers and wall-clock helpers shared by every app."""

from __future__ import annotations

import time
import uuid


def new_uuid() -> str:
    """A random (version 4) UUID in lowercase canonical form."""
    return str(uuid.uuid4())


def run_id() -> str:
    """A fresh run id: `run_` and a UUID."""
    return f"run_{uuid.uuid4()}"


def session_id() -> str:
    """A fresh session id: `sess_` and a UUID."""
    return f"sess_{uuid.uuid4()}"


def approval_id() -> str:
    """A fresh approval id: `appr_` and a UUID."""
    return f"appr_{uuid.uuid4()}"


def cron_id() -> str:
    """A fresh id of a scheduled job: `cron_` and a UUID."""
    return f"cron_{uuid.uuid4()}"


def skill_id() -> str:
    """A fresh skill id: `skill_` and a UUID."""
    return f"skill_{uuid.uuid4()}"


def idempotency_key(scope: str, operation: str) -> str:
    """A fresh key under which `operation` happens once in `scope`."""
    return f"{scope}:{operation}:{uuid.uuid4()}"


def now_ms() -> int:
    """Wall-clock time in milliseconds since the epoch; for records, never for timeouts."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Monotonic milliseconds; for everything that gates behaviour."""
    return time.monotonic_ns() // 1_000_000


def expired(ts_ms: int, ttl_ms: int, *, now: int) -> bool:
    """True when more than `ttl_ms` have passed since `ts_ms`; exactly `ttl_ms` is still valid."""
    return now - ts_ms > ttl_ms
