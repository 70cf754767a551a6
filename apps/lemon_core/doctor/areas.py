"""What each area of core tells about itself in a support bundle: states, counts and sizes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from lemon_core.doctor import extension_checks, provider_checks
from lemon_core.doctor.context import DoctorArea, DoctorContext
from lemon_core.runtime_env import build_info
from lemon_core.state_lock import StateDirUnusable, read_holder
from lemon_core.terminal_backends import TerminalPolicy, find_sandbox, terminal_backends

_MAX_RECORDS: Final = 1_000

Data = Mapping[str, object]


async def _runtime(context: DoctorContext) -> Data:
    try:
        holder = read_holder(context.paths.runtime_lock)
        running: object = None if holder is None else asdict(holder)
    except StateDirUnusable as exc:
        running = str(exc)
    env, profile = context.env, context.profile
    build = await anyio.to_thread.run_sync(
        partial(build_info, channel=context.config.runtime.channel, root=env.lemon_root)
    )
    return {
        "build": asdict(build),
        "running": running,
        "profile": None
        if profile is None
        else {"name": profile.name, "components": list(profile.components)},
        "ports": {"control": env.control_port, "web": env.web_port, "sim": env.sim_port},
        "lemon_root": None if env.lemon_root is None else str(env.lemon_root),
        "debug": env.debug,
        "production": env.production,
    }


async def _store(context: DoctorContext) -> Data:
    backend = context.config.store.backend
    found: dict[str, object] = {"backend": backend}
    if backend == "sqlite":
        path = context.store_path
        found["files"] = [
            _file(path.with_name(path.name + suffix)) for suffix in ("", "-wal", "-shm")
        ]
    return found


async def _secrets(context: DoctorContext) -> Data:
    if not context.has_store:
        return {"stored": None, "places": [place.name for place in context.keys.providers]}
    async with context.open_store() as store:
        status = asdict(await context.make_secrets(store).status())
    # Whose they are is nobody's business.
    del status["owner"]
    return status


async def _providers(context: DoctorContext) -> Data:
    stored = await provider_checks.stored_secrets(context)
    ready = provider_checks.credentialed(context, stored)
    rows = context.config.providers
    return {
        "default": provider_checks.default_name(context),
        "providers": [
            {
                "name": name,
                "has_credential": name in ready,
                "has_base_url": name in rows and rows[name].base_url is not None,
                "models": len(rows[name].models) if name in rows else 0,
            }
            for name in sorted({*provider_checks.configured_names(context), *ready})
        ],
    }


async def _usage(context: DoctorContext) -> Data:
    from lemon_core.store import UsageStore
    from lemon_core.usage_meter import utc_date

    if not context.has_store:
        return {"today": None, "models": []}
    today = utc_date(context.clock.now_ms())
    async with context.open_store() as store:
        usage = UsageStore(store)
        overall = await usage.overall()
        return {
            "today": asdict((await usage.current(today)).total),
            "models": [asdict(row) for row in overall.models] if overall else [],
        }


async def _introspection(context: DoctorContext) -> Data:
    from lemon_core.introspection import Introspection

    enabled = context.config.introspection.enabled
    if not context.has_store:
        return {"enabled": enabled, "records": 0}
    async with context.open_store() as store:
        records = await Introspection(store, context.clock).query(limit=_MAX_RECORDS)
    counts = Counter(record.event_type for record in records)
    return {
        "enabled": enabled,
        "records": len(records),
        "counted_at_most": _MAX_RECORDS,
        "event_types": dict(sorted(counts.items())),
        "newest": _time(records[0].ts_ms) if records else None,
        "oldest": _time(records[-1].ts_ms) if records else None,
    }


async def _logs(context: DoctorContext) -> Data:
    logging = context.config.logging
    file = None if logging.file is None else _file(context.paths.expand(logging.file))
    return {"level": logging.level, "file": file}


async def _terminal(context: DoctorContext) -> Data:
    policy = TerminalPolicy.from_environ(context.environ)
    return {
        "backends": [asdict(backend) for backend in terminal_backends(policy)],
        "sandbox_available": find_sandbox(context.environ).is_available,
    }


async def _checkpoints(context: DoctorContext) -> Data:
    try:
        with os.scandir(context.paths.checkpoint_dir) as entries:
            sizes = [e.stat().st_size for e in entries if e.name.startswith("chk_")]
    except FileNotFoundError:
        sizes = []
    return {"count": len(sizes), "bytes": sum(sizes)}


AREAS: Final[tuple[DoctorArea, ...]] = (
    DoctorArea("runtime", ("other programs", "runs and sessions", "log lines"), _runtime),
    DoctorArea("store", ("every row of the database",), _store),
    DoctorArea("secrets", ("names, owners and values of secrets", "the master key"), _secrets),
    DoctorArea("providers", ("keys", "base URLs", "account names"), _providers),
    DoctorArea("usage", ("runs", "sessions", "prompts and answers"), _usage),
    DoctorArea("introspection", ("payloads", "runs, sessions and agents"), _introspection),
    DoctorArea(
        "extensions", ("names and places of extensions", "their code"), extension_checks.area
    ),
    DoctorArea("logs", ("log lines",), _logs),
    DoctorArea("terminal", ("commands and their output",), _terminal),
    DoctorArea("checkpoints", ("files, their names and contents", "sessions"), _checkpoints),
)


def _file(path: Path) -> dict[str, object]:
    """Name, size and mode of a file, whose content stays where it is."""
    try:
        status = path.stat()
    except OSError as exc:
        return {"path": str(path), "exists": False, "reason": exc.strerror}
    return {
        "path": str(path),
        "exists": True,
        "bytes": status.st_size,
        "mode": f"{status.st_mode & 0o7777:04o}",
        "modified": _time(int(status.st_mtime * 1000)),
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
