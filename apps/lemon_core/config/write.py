"""Edits of a configuration file: checked first, and written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lemon_core.config import keys
from lemon_core.config.contributed import NOTHING_CONTRIBUTED, Contributed
from lemon_core.config.retired import migrated
from lemon_core.config.source import KeyPath, Problem, TomlFile, dotted, parse_toml
from lemon_core.config.toml_edit import TomlEditError, delete, upsert
from lemon_core.config.validate import ENGINE_KEY_MESSAGE, value_problems, whole_problems
from lemon_core.errors import LemonError

_BOM: Final = b"\xef\xbb\xbf"
_NEW_FILE_MODE: Final = 0o600
_MAX_TRIES: Final = 3


class ConfigWriteError(LemonError):
    """The file was not written and is as it was."""

    code = "config_write"

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path, self.detail = path, detail


@dataclass(frozen=True, slots=True)
class Edit:
    """A key to set to a TOML literal, or to delete when that is None."""

    path: KeyPath
    literal: str | None = None


def edit_file(
    path: Path, edits: Sequence[Edit], *, contributed: Contributed = NOTHING_CONTRIBUTED
) -> bool:
    """Apply all of `edits` to the file at `path`, or none; False when they change nothing.

    `contributed` are the sections of apps, which are checked along with core's own.
    A file that is not there is begun, readable by its owner alone. Raises `ConfigWriteError` for a
    malformed file, an edit that cannot be made, and one after which the file would not be valid.
    """

    def edited(file: TomlFile, text: str) -> str:
        after = _applied(path, text, edits)
        _refuse_invalid(file, parse_toml(path, after.encode()), edits, contributed)
        return after

    return rewrite(path, edited)


def rewrite(path: Path, edited: Callable[[TomlFile, str], str]) -> bool:
    """Replace the text of the file at `path` by what `edited` makes of it; False when that is same.

    `edited` gets the file as it was read and its text with its own line ends, and is called again
    when somebody else writes meanwhile. A symbolic link stays and its target is replaced; the mode
    and a byte order mark stay too. Raises `ConfigWriteError` and whatever `edited` does.
    """
    target = Path(os.path.realpath(path))
    for _ in range(_MAX_TRIES):
        raw = _read(path, target)
        file = parse_toml(path, raw)
        if file.problem is not None:
            raise ConfigWriteError(path, f"not changed: {_placed(file.problem)}")
        mark = _BOM if raw.startswith(_BOM) else b""
        after = mark + edited(file, raw.removeprefix(_BOM).decode()).encode()
        if after == raw:
            return False
        with _refusals(path):
            if _replace(target, raw, after):
                return True
    raise ConfigWriteError(path, "not changed: somebody else is writing it: try again")


def write_new(path: Path, raw: bytes) -> None:
    """A new private file at `path`; raises FileExistsError and other `OSError`s."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _NEW_FILE_MODE)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, _NEW_FILE_MODE)
        file.write(raw)
        file.flush()
        os.fsync(fd)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turns the system's refusals into one line about `path`."""
    try:
        yield
    except OSError as exc:
        raise ConfigWriteError(path, f"cannot be written: {exc.strerror}") from exc


def _read(path: Path, target: Path) -> bytes:
    try:
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigWriteError(path, "not changed: is not a regular file")
        if not status.st_mode & 0o222:
            # Replacing it would work, but whoever made it so did not mean that.
            raise ConfigWriteError(path, "not changed: is read-only")
        return target.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as exc:
        raise ConfigWriteError(path, f"cannot be read: {exc.strerror}") from exc


def _replace(target: Path, before: bytes, after: bytes) -> bool:
    """Put `after` where `before` was; False when something else is there by now."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            with suppress(FileNotFoundError):
                status = target.stat()
                with suppress(PermissionError):
                    os.fchown(fd, status.st_uid, status.st_gid)
                os.fchmod(fd, stat.S_IMODE(status.st_mode))
            file.write(after)
            file.flush()
            os.fsync(fd)
        if (target.read_bytes() if target.exists() else b"") != before:
            return False
        os.replace(name, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def _applied(path: Path, text: str, edits: Sequence[Edit]) -> str:
    for edit in edits:
        *table, key = edit.path
        if not isinstance(key, str):
            raise ConfigWriteError(path, f"not changed: {dotted(edit.path)}: is no key")
        try:
            if edit.literal is None:
                text = delete(text, tuple(table), key)
            else:
                text = upsert(text, tuple(table), key, edit.literal)
        except TomlEditError as exc:
            raise ConfigWriteError(path, f"not changed: {exc}") from exc
    return text


def _refuse_invalid(
    before: TomlFile, after: TomlFile, edits: Sequence[Edit], contributed: Contributed
) -> None:
    """Raise for faults that the edits made; those that were there already are not theirs."""
    if after.problem is not None:
        raise ConfigWriteError(after.path, f"not changed: {_placed(after.problem)}")
    known = set(_faults(before.data, contributed))
    edited = [edit.path for edit in edits if edit.literal is not None]
    found = [
        f"{dotted(at)}: {message}"
        for at, message in _faults(after.data, contributed)
        if (at, message) not in known or any(at[: len(path)] == path for path in edited)
    ]
    if found:
        raise ConfigWriteError(after.path, f"not changed: {'; '.join(found)}")


def _faults(data: dict[str, object], contributed: Contributed) -> list[tuple[KeyPath, str]]:
    """What the validated load would refuse in `data`, if it were the only file."""
    found = [(path, ENGINE_KEY_MESSAGE) for path in keys.engine_keys(data)]
    read = migrated(data).data
    model, channels = contributed.used_by((read,))
    found += value_problems(read, model, channels)
    return found or whole_problems(model.model_validate(read), read)


def _placed(problem: Problem) -> str:
    return f"line {problem.line}: {problem.message}" if problem.line else problem.message
