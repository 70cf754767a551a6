"""Which of the well-known credentials are there, and copying them into the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lemon_core.cli.base import Core
from lemon_core.known_secrets import KNOWN_SECRETS, PROVIDER_SECRETS
from lemon_core.secrets import SecretsError


@dataclass(frozen=True, slots=True)
class Known:
    """A well-known name; `problem` is the code of what keeps a stored one from being read."""

    name: str
    kind: Literal["provider", "tool"]
    source: Literal["store", "env", "missing"]
    masked: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """The names by what became of them."""

    imported: tuple[str, ...]
    already_stored: tuple[str, ...]
    not_set: tuple[str, ...]


async def look_up(core: Core) -> list[Known]:
    """Every well-known credential as a run would find it."""
    return [await _known(core, name) for name in KNOWN_SECRETS]


async def import_known(core: Core, *, dry_run: bool, force: bool) -> Imported:
    """Store every well-known credential that the environment has; raises `SecretsError`."""
    imported, already_stored, not_set = [], [], []
    for name in KNOWN_SECRETS:
        if not core.loaded.environ.get(name, "").strip():
            not_set.append(name)
        elif not force and await core.secrets.exists(name):
            already_stored.append(name)
        else:
            if not dry_run:
                await core.secrets.import_from_env(name)
            imported.append(name)
    return Imported(tuple(imported), tuple(already_stored), tuple(not_set))


def masked(value: str) -> str:
    """A value that can be recognised and not used; one of up to eight characters not even that."""
    return f"{value[:4]}…{value[-4:]}" if len(value) > 8 else "***"


async def _known(core: Core, name: str) -> Known:
    kind: Literal["provider", "tool"] = "provider" if name in PROVIDER_SECRETS else "tool"
    try:
        found = await core.secrets.resolve(name, count_use=False)
    except SecretsError as exc:
        if exc.code in ("not_found", "expired"):
            return Known(name, kind, "missing")
        return Known(name, kind, "store", problem=exc.code)
    return Known(name, kind, found.source, masked(found.value))
