"""Rewrite the retired sections of a configuration file under their new names.

What comes out has to say exactly what the old file says when it is read under the new names
(`retired`), or the file is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lemon_core.config import keys
from lemon_core.config.migrate_text import renamed
from lemon_core.config.retired import Migrated, migrated
from lemon_core.config.source import KeyPath, TomlFile, dotted, read_toml
from lemon_core.config.toml_edit import TomlEditError
from lemon_core.config.write import ConfigWriteError, rewrite, write_new


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration did; without a `backup` nothing was written.

    `moved` and `shadowed` are pairs of old and new path, `dropped` old ones. `engine_keys` are
    still in the file: nothing can take their place, and the load refuses them.
    """

    path: Path
    backup: Path | None
    moved: tuple[tuple[KeyPath, KeyPath], ...] = ()
    dropped: tuple[KeyPath, ...] = ()
    shadowed: tuple[tuple[KeyPath, KeyPath], ...] = ()
    engine_keys: tuple[KeyPath, ...] = ()

    def describe(self) -> str:
        """One line for a person."""
        if self.backup is None:
            return f"{self.path}: nothing to migrate"
        parts = [f"[{old}] is now {new}" for old, new in self._sections().items()]
        parts += [f"{dotted(old)} was dropped" for old in self.dropped]
        parts += [
            f"{dotted(old)} was dropped, as {dotted(new)} is set too" for old, new in self.shadowed
        ]
        return f"{self.path}: migrated: {'; '.join(parts)}; the old file is {self.backup}"

    def _sections(self) -> dict[str, str]:
        """The new tables of every old one, as people write them."""
        found: dict[str, list[str]] = {}
        for old, new in self.moved:
            depth = 2 if old[0] == "agents" or old[:2] == ("agent", "tools") else 1
            names = found.setdefault(dotted(old[:depth]), [])
            name = f"[{dotted(new[: 2 if new[0] == 'profiles' or 'tools' in new[1:2] else 1])}]"
            if name not in names:
                names.append(name)
        return {old: " and ".join(names) for old, names in found.items()}


def migrate_config(path: Path) -> MigrationReport:
    """Rewrite the file at `path`, after a private copy to `<path>.pre-update-bak`.

    An older copy with another content stays, and the new one gets a number. Doing it again changes
    nothing. Raises `ConfigWriteError` for a file that is malformed, cannot be written, or has its
    keys in a way that only a person can take apart.
    """
    file = read_toml(path)
    engine_keys = tuple(keys.engine_keys(file.data))
    if file.problem is None and not migrated(file.data).changed:
        return MigrationReport(path, None, engine_keys=engine_keys)
    done: list[tuple[Migrated, Path]] = []

    def edited(file: TomlFile, text: str) -> str:
        result = migrated(file.data)
        after = _rewritten(path, text, result)
        if after != text:
            done[:] = [(result, _backup(path))]
        return after

    if not rewrite(path, edited):
        return MigrationReport(path, None, engine_keys=engine_keys)
    ((result, backup),) = done
    return MigrationReport(
        path,
        backup,
        tuple(result.moved.items()),
        tuple(result.dropped),
        tuple(result.shadowed.items()),
        engine_keys,
    )


def migrate_at_start(path: Path) -> tuple[str, ...]:
    """Migrate the file at `path` and return the lines to show a person.

    Never raises: a file that cannot be rewritten is read under the new names all the same, and one
    that is malformed is the load's to report.
    """
    if read_toml(path).problem is not None:
        return ()
    try:
        report = migrate_config(path)
    except ConfigWriteError as exc:
        return (f"{exc}; its retired sections are read under their new names",)
    return () if report.backup is None else (report.describe(),)


def _backup(path: Path) -> Path:
    """A private copy of the file; one with the same content may be there already."""
    raw = path.read_bytes()
    number = 0
    while True:
        suffix = f".{number}" if number else ""
        backup = path.with_name(f"{path.name}.pre-update-bak{suffix}")
        try:
            write_new(backup, raw)
            return backup
        except FileExistsError:
            if backup.is_file() and backup.read_bytes() == raw:
                return backup
            number += 1
        except OSError as exc:
            raise ConfigWriteError(backup, f"cannot be written: {exc.strerror}") from exc


def _rewritten(path: Path, text: str, result: Migrated) -> str:
    import tomllib

    try:
        after = renamed(text, result)
        if _meaning(tomllib.loads(after)) == _meaning(result.data):
            return after
    except (TomlEditError, ValueError):
        pass
    raise ConfigWriteError(path, "has retired sections that have to be renamed by hand")


def _meaning(data: Mapping[str, object]) -> str:
    """`data` as one text, without the empty tables that mean what no table means."""
    kept = dict(data)
    for name in ("defaults", "runtime", "agent", "tools"):
        if isinstance(table := kept.get(name), Mapping):
            kept[name] = _without_empty(table)
    full = {name: value for name, value in kept.items() if value != {}}
    return json.dumps(full, sort_keys=True, default=repr)


def _without_empty(table: Mapping[str, object]) -> dict[str, object]:
    inner = {k: _without_empty(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    return {name: value for name, value in inner.items() if value != {}}
