"""Reading and writing whole files; blocking, so called in a worker thread.

Everything raises `ToolError` with what is wrong, under the name that the model gave.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from coding_agent.workspace import opened
from lemon_agent import ToolError

MAX_FILE_BYTES: Final = 64 * 1_024 * 1_024


def read_file(path: Path, shown: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file of at most `max_bytes`."""
    # Without O_NONBLOCK the opening of a pipe would wait for its writer.
    with _told(shown, "read"), opened(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise ToolError(f"{shown} is a directory: use ls")
        if not stat.S_ISREG(info.st_mode):
            raise ToolError(f"{shown} is not a regular file")
        if info.st_size > max_bytes:
            raise ToolError(
                f"{shown} has {info.st_size} bytes, {max_bytes} is the most that can be read: "
                "look at parts of it with grep or bash"
            )
        with open(fd, "rb", closefd=False) as file:
            return file.read()


def write_file(path: Path, content: bytes, shown: str, *, expected: bytes | None = None) -> None:
    """Write beside `path` and rename, so that no half-written file is ever seen.

    Mode and owner of an existing file stay. Missing folders are made. With `expected`, a file that
    holds something else by now is left alone.
    """
    with _told(shown, "written"):
        make_folder(path.parent)
        with opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as folder:
            before = _existing(path, folder, shown)
            if expected is not None and _content(path.name, folder) != expected:
                raise ToolError(f"{shown} was changed by somebody else meanwhile: read it again")
            beside = f".{path.name[:200]}.{secrets.token_hex(4)}.tmp"
            try:
                _write_new(beside, content, folder, before)
                os.replace(beside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:  # cancellation included: no temporary file stays
                with suppress(FileNotFoundError):
                    os.unlink(beside, dir_fd=folder)
                raise


def check_writable(path: Path, shown: str) -> None:
    """Raise unless `path` is a regular file, or nothing."""
    with (
        _told(shown, "written"),
        suppress(FileNotFoundError),
        opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as folder,
    ):
        _existing(path, folder, shown)


def make_folder(folder: Path) -> None:
    """Make the resolved `folder` and what is missing above it, through no link.

    Raises `OSError`, and `ToolError` when a folder on the way lies somewhere else by now.
    """
    missing: list[str] = []
    while not folder.is_dir():
        missing.append(folder.name)
        folder = folder.parent
    for name in reversed(missing):
        with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as above, suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
        folder /= name


def delete_file(path: Path, shown: str) -> None:
    """Remove the regular file at the resolved `path`."""
    with _told(shown, "deleted"), opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as folder:
        if _existing(path, folder, shown) is None:
            raise ToolError(f"{shown}: no such file")
        os.unlink(path.name, dir_fd=folder)


def _content(name: str, folder: int) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(name, flags, dir_fd=folder), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _existing(path: Path, folder: int, shown: str) -> os.stat_result | None:
    try:
        info = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(info.st_mode):
        raise ToolError(f"{shown} is a directory")
    if not stat.S_ISREG(info.st_mode):
        raise ToolError(f"{shown} is not a regular file")
    return info


def _write_new(name: str, content: bytes, folder: int, like: os.stat_result | None) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
    with open(fd, "wb") as file:
        if like is not None:
            with suppress(PermissionError):  # only root gives files away
                os.fchown(fd, like.st_uid, like.st_gid)
            os.fchmod(fd, stat.S_IMODE(like.st_mode))
        file.write(content)


@contextmanager
def _told(shown: str, what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as exc:
        raise ToolError(f"{shown}: no such file") from exc
    except OSError as exc:
        raise ToolError(f"{shown}: cannot be {what} ({exc.strerror})") from exc
