"""The files of a workspace as checkpoints take and put them back; blocking.

A path is checked once, when it is taken: its folders are resolved and it must lie inside a root.
From then on it is walked folder by folder from that root, through open folders and never through a
link, so that a link put in its way later leads nowhere. A file is put back beside its place and
renamed over it: a link that took the place is replaced itself, and what it points to stays.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from lemon_core.checkpoint_errors import CheckpointError, CheckpointRefused
from lemon_core.workspace import Workspace, is_inside

FILE_MAX_BYTES: Final = 10 * 1_024 * 1_024

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK the opening of a pipe would wait for its writer.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is: its path below a root, and the name by which people know it.

    `root` is a real path; `below` has no links as long as nobody puts one there.
    """

    shown: str
    root: str
    below: str

    @property
    def path(self) -> str:
        """The absolute path."""
        return f"{self.root.rstrip('/')}/{self.below}"


@dataclass(frozen=True, slots=True)
class FileState:
    """What was at a place: a regular file with its permissions, or nothing (both None)."""

    content: bytes | None
    mode: int | None

    @property
    def exists(self) -> bool:
        """False when there was nothing."""
        return self.content is not None


ABSENT: Final = FileState(None, None)


def place_of(text: str, workspace: Workspace) -> Place:
    """The place that `text` means, relative to the workspace's directory.

    Raises `CheckpointRefused` for what lies outside the roots, and for a root itself.
    """
    if not text or "\0" in text:
        raise CheckpointRefused(f"{text!r} is no path")
    plain = os.path.join(workspace.cwd, text)
    folder, name = os.path.split(os.path.normpath(plain) if ".." not in plain else plain)
    if name in ("", ".", ".."):
        raise CheckpointRefused(f"{text} names no file")
    real = os.path.join(os.path.realpath(folder), name)
    for root in sorted(map(os.path.realpath, workspace.roots), key=len, reverse=True):
        if is_inside(real, root) and real != root:
            return Place(_shown(real, workspace.cwd), root, os.path.relpath(real, root))
    raise CheckpointRefused(f"{text} lies outside the workspace ({', '.join(workspace.roots)})")


def size_of(place: Place) -> int:
    """How many bytes `read_state` would give, without reading them; raises as it does."""
    with _told(place, "read"):
        try:
            with _regular(place) as fd:
                return os.fstat(fd).st_size
        except FileNotFoundError:
            return 0


def read_state(place: Place) -> FileState:
    """What is at `place` now.

    Raises `CheckpointRefused` for links, folders, other things that are no files, and files of more
    than 10 MiB; `CheckpointError` when it cannot be read.
    """
    with _told(place, "read"):
        try:
            with _regular(place) as fd, open(fd, "rb", closefd=False) as file:
                mode = stat.S_IMODE(os.fstat(fd).st_mode)
                # One byte more shows that the file grew past the limit in the meantime.
                content = file.read(FILE_MAX_BYTES + 1)
        except FileNotFoundError:
            return ABSENT
    if len(content) > FILE_MAX_BYTES:
        raise _too_large(place)
    return FileState(content, mode)


def check_restorable(place: Place) -> None:
    """Raise unless `place` can be put back as things are: nothing is changed."""
    with _told(place, "restored"):
        try:
            with _folder(place) as (folder, name):
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise CheckpointRefused(f"{place.shown} is no regular file now: move it away first")


def write_state(place: Place, state: FileState) -> None:
    """Make `place` what it was: the content and the permissions, or nothing there.

    Raises `CheckpointRefused` for a link among its folders and `CheckpointError`.
    """
    with _told(place, "restored"):
        if state.content is None:
            with suppress(FileNotFoundError), _folder(place) as (folder, name):
                os.unlink(name, dir_fd=folder)
            return
        with _folder(place, make=True) as (folder, name):
            _replace(folder, name, state.content, state.mode or 0o600)


@contextmanager
def _folder(place: Place, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The open folder of `place` and the file's name in it; `make` makes what is missing."""
    parts = PurePosixPath(place.below).parts
    if not parts or ".." in parts or os.path.isabs(place.below):
        raise CheckpointRefused(f"{place.below!r} is no path below {place.root}")
    *folders, name = parts
    # The folders above a root are nobody's to change but its owner's; a moved root is told here.
    if os.path.realpath(place.root) != place.root:
        raise CheckpointRefused(f"{place.root} is a link now")
    fd = os.open(place.root, _FOLDER)
    try:
        for part in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
            inner = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd, name
    finally:
        os.close(fd)


@contextmanager
def _regular(place: Place) -> Iterator[int]:
    """The open file at `place`, which is a regular one and not too large."""
    with _folder(place) as (folder, name):
        fd = os.open(name, _FILE, dir_fd=folder)
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise CheckpointRefused(f"{place.shown} is a folder: name its files")
        if not stat.S_ISREG(info.st_mode):
            raise CheckpointRefused(f"{place.shown} is no regular file")
        if info.st_size > FILE_MAX_BYTES:
            raise _too_large(place)
        yield fd
    finally:
        os.close(fd)


def _too_large(place: Place) -> CheckpointRefused:
    return CheckpointRefused(f"{place.shown} is larger than 10 MiB and cannot be kept")


def _replace(folder: int, name: str, content: bytes, mode: int) -> None:
    beside = f".{name[:100]}.{secrets.token_hex(4)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(beside, flags, 0o600, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            with suppress(FileNotFoundError, PermissionError):  # only root gives files away
                owner = os.stat(name, dir_fd=folder, follow_symlinks=False)
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(content)
            # Last: a change of owner or content would take special permissions away again.
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=folder)
        raise


def _shown(real: str, cwd: str) -> str:
    base = os.path.realpath(cwd)
    return os.path.relpath(real, base) if is_inside(real, base) else real


def unique_places(texts: Iterable[str], workspace: Workspace) -> tuple[Place, ...]:
    """The places of `texts` in order, each once; raises as `place_of`."""
    return tuple(dict.fromkeys(place_of(text, workspace) for text in texts))


@contextmanager
def _told(place: Place, what: str) -> Iterator[None]:
    try:
        yield
    except NotADirectoryError as exc:
        raise CheckpointRefused(f"{place.shown}: a link or a file is among its folders") from exc
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise CheckpointRefused(f"{place.shown} is a link, or lies behind one") from exc
        raise CheckpointError(f"{place.path} cannot be {what} ({exc.strerror})") from exc
