"""What Lemon keeps: the master key, the database, counted usage and skills."""

from __future__ import annotations

import os
from pathlib import Path

from lemon_core.doctor.context import DoctorContext
from lemon_core.doctor.report import Finding, failed, passed, skipped, warned
from lemon_core.secret_errors import SecretsError
from lemon_core.store.errors import StoreError
from lemon_core.store.sqlite_file import quick_check

_AWAY = "stop Lemon and move {} away (keep it: what it holds may be rescued)"
_SHOWN_FAULTS = 5


async def master_key(context: DoctorContext) -> Finding:
    """Whether secrets can be stored and read."""
    try:
        key = await context.keys.load()
    except SecretsError as exc:
        if exc.code == "missing_master_key":
            return failed(str(exc), "lemon secrets init")
        return failed(str(exc), "correct the entry, or lemon secrets init --force makes a new key")
    return passed(f"the master key comes from {key.source}")


async def ping(context: DoctorContext) -> Finding:
    """Whether the store answers, and whether what it holds is whole."""
    backend: str = context.config.store.backend
    if backend == "memory":
        return skipped("the store lives in memory")
    path = context.store_path
    if backend == "sqlite" and not path.exists():
        return _could_be_made(path)
    try:
        if backend == "sqlite" and (faults := await quick_check(path)):
            return failed("\n".join(faults[:_SHOWN_FAULTS]), _AWAY.format(path))
        if not context.has_store:
            return passed(f"{path} is whole and is brought up to date when Lemon starts")
        async with context.open_store() as store:
            await store.ping()
    except StoreError as exc:
        return failed(str(exc), "do what the message says; nothing was changed")
    return passed(f"{path} answers and is whole" if backend == "sqlite" else "the store answers")


async def skills_directory(context: DoctorContext) -> Finding:
    """Whether skills can be read and installed."""
    path = context.paths.agent_dir(context.environ) / "skill"
    if path.is_dir():
        return passed(f"{path} is there")
    if path.exists() or path.is_symlink():
        return failed(f"{path} is no folder", "move it away")
    return skipped(f"{path} is not there: no skill is installed")


async def usage_status(context: DoctorContext) -> Finding:
    """What the day has used so far, beside the limits that the caller knows."""
    from lemon_core.store import UsageStore
    from lemon_core.usage_meter import utc_date

    if not context.has_store:
        return skipped("no run has been counted")
    try:
        async with context.open_store() as store:
            today = await UsageStore(store).current(utc_date(context.clock.now_ms()))
    except StoreError:
        return skipped("the store cannot be read (store.ping tells why)")
    usage = today.total
    if not usage.runs:
        return skipped("no run has been counted today")
    used = {"runs": usage.runs, "total": usage.total, "cost_usd": usage.cost_usd}
    over = [q for q in context.quotas if (value := used[q.measure]) is not None and value > q.limit]
    if over:
        told = ", ".join(f"{used[q.measure]:g} of {q.limit:g} {q.measure}" for q in over)
        return warned(f"over the limit of today: {told}", "wait for tomorrow, or raise the limit")
    return passed(f"within every limit: {usage.runs} runs today")


def _could_be_made(path: Path) -> Finding:
    """The finding for a database that is not there yet."""
    place = path.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return passed(f"{path} is made when Lemon first starts")
    return failed(f"{path} cannot be made: {place} cannot be written", "set LEMON_STORE_PATH")
