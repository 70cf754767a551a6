"""The folder of checkpoints: one JSON file each, private, and never more than the cap in all.

A file is one JSON document in lines: the header first, then what the caller kept, then one line per
workspace file, so that lists read one line and a restore holds one file in memory. It is written
beside its name and renamed. Whoever changes the folder holds its lock, across processes too, so a
temporary file found under the lock was left by a process that died.

The modification time is the order: each new file gets one later than all others, also when the wall
clock goes back. Blocking.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from lemon_core.checkpoint_errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    CheckpointRefused,
)
from lemon_core.checkpoint_files import FileState, Place
from lemon_core.checkpoint_listing import CHECKPOINT_ID, Listing, Stored, on_disk, scan
from lemon_core.private_files import open_new, sync_folder

MAX_BYTES: Final = 1 << 30
"""What all checkpoints may take, counted in blocks of 4 KiB as disks do."""
WARN_SHARE: Final = 0.8

CheckpointKind = Literal["state", "filesystem"]

_VERSION: Final = 1
_ENTRY_OVERHEAD: Final = 1_024


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint is, without what it holds. `paths` are named from `cwd` on."""

    id: str
    kind: CheckpointKind
    session_id: str
    created_at_ms: int
    cwd: str | None = None
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FolderUsage:
    """How full the folder is."""

    count: int
    used_bytes: int
    max_bytes: int

    @property
    def nearly_full(self) -> bool:
        """True from four fifths of the cap on: soon the oldest checkpoints go."""
        return self.used_bytes >= self.max_bytes * WARN_SHARE


class CheckpointFolder:
    """Reads and writes the files; at most `max_bytes` in all, the oldest go first."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._known = Listing(path)

    def write(
        self,
        header: Checkpoint,
        data: Mapping[str, object],
        files: Iterable[tuple[Place, Callable[[], FileState]]] = (),
        *,
        expected_bytes: int = 0,
    ) -> FolderUsage:
        """Store a checkpoint; the states are read one at a time. Returns how full it is then.

        Raises `CheckpointRefused` when it alone is over the cap, which removes nothing, and
        `CheckpointError`. What `files` raises goes through; nothing is left of the attempt.
        """
        with self._locked() as lock, _told(self.path):
            self._look(lock)
            self._require_fits(expected_bytes)
            beside = self.path / f".{header.id}.tmp"
            try:
                with open_new(beside) as file:
                    room = expected_bytes
                    self._make_room(room)
                    for line in _lines(header, data, files):
                        size = file.tell() + len(line)
                        if size > room:  # files grew since, or nobody said how large it gets
                            self._require_fits(size)
                            self._make_room(size)
                            room = size
                        file.write(line)
                    file.flush()
                    order = max(time.time_ns(), self._known.newest + 1)
                    os.utime(file.fileno(), ns=(order, order))
                    os.fsync(file.fileno())
                    written = Stored(order, self._file(header.id).name, on_disk(file.tell()))
                os.replace(beside, self._file(header.id))
                sync_folder(self.path)
            except BaseException:
                beside.unlink(missing_ok=True)
                self._known.forget()
                raise
            self._known.add(written)
            self._known.keep(lock)
            return self._known_usage()

    def tidy(self) -> FolderUsage:
        """Remove what a crash left and what is over the cap; makes no folder."""
        if not self.path.is_dir():
            return FolderUsage(0, 0, self.max_bytes)
        with self._locked() as lock, _told(self.path):
            self._known.forget()
            self._look(lock)
            self._make_room(0)
            self._known.keep(lock)
            return self._known_usage()

    def usage(self) -> FolderUsage:
        """How full the folder is."""
        with _told(self.path):
            stored = scan(self.path)
        return FolderUsage(len(stored), sum(one.size for one in stored), self.max_bytes)

    def headers(self, session_id: str | None = None) -> tuple[Checkpoint, ...]:
        """The checkpoints (of one session), newest first; damaged files are passed over."""
        found = []
        with _told(self.path):
            for stored in reversed(scan(self.path)):
                path = self.path / stored.name
                with suppress(CheckpointDamaged, FileNotFoundError), open(path, "rb") as file:
                    header = _read_header(file, path)
                    if session_id in (None, header.session_id):
                        found.append(header)
        return tuple(found)

    def header(self, checkpoint_id: str) -> Checkpoint:
        """The checkpoint of this id; raises `CheckpointError`."""
        with self._opened(checkpoint_id) as file:
            return _read_header(file, self._file(checkpoint_id))

    def data(self, checkpoint_id: str) -> dict[str, object]:
        """What the caller kept in it; raises `CheckpointError`."""
        path = self._file(checkpoint_id)
        with self._opened(checkpoint_id) as file:
            _read_header(file, path)
            value = _json(
                file.readline().strip().removeprefix(b'"data": ').removesuffix(b","), path
            )
        if not isinstance(value, dict):
            raise CheckpointDamaged(f"{path} holds no data")
        return value

    def files(self, checkpoint_id: str) -> Iterator[tuple[Place, FileState]]:
        """Its workspace files, one at a time; raises `CheckpointError`."""
        path = self._file(checkpoint_id)
        with self._opened(checkpoint_id) as file:
            _read_header(file, path)
            file.readline()
            if file.readline() != b'"files": [\n':
                raise CheckpointDamaged(f"{path} holds no list of files")
            for line in file:
                if line == b"]}\n":
                    return
                yield _entry(_json(line.strip().removesuffix(b","), path), path)
        raise CheckpointDamaged(f"{path} ends too early")

    def delete(self, checkpoint_ids: Iterable[str]) -> tuple[str, ...]:
        """Remove checkpoints; the ids that were there."""
        paths = [self._file(checkpoint_id) for checkpoint_id in checkpoint_ids]
        if not self.path.is_dir():
            return ()
        with self._locked() as lock, _told(self.path):
            gone = []
            for path in paths:
                with suppress(FileNotFoundError):
                    path.unlink()
                    gone.append(path.stem)
            sync_folder(self.path)
            self._known.keep(lock)
            self._known.forget()
        return tuple(gone)

    def _file(self, checkpoint_id: str) -> Path:
        # An id becomes a path here and nowhere else.
        if not CHECKPOINT_ID.fullmatch(checkpoint_id):
            raise CheckpointRefused(f"{checkpoint_id!r:.60} is no checkpoint id")
        return self.path / f"{checkpoint_id}.json"

    @contextmanager
    def _opened(self, checkpoint_id: str) -> Iterator[BinaryIO]:
        path = self._file(checkpoint_id)
        with _told(path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                raise CheckpointNotFound(checkpoint_id) from None
        with open(fd, "rb") as file:
            yield file

    @contextmanager
    def _locked(self) -> Iterator[int]:
        with _told(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            # Older than this rule, or made by hand: the content is nobody else's.
            self.path.chmod(0o700)
            fd = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)

    def _look(self, lock: int) -> None:
        """Know what is there. A process that died has left its temporary file as a change."""
        if self._known.look(lock):
            for left in self.path.glob(".chk_*.tmp"):
                left.unlink(missing_ok=True)

    def _known_usage(self) -> FolderUsage:
        return FolderUsage(len(self._known), self._known.used_bytes, self.max_bytes)

    def _require_fits(self, size: int) -> None:
        if on_disk(size) > self.max_bytes:
            raise CheckpointRefused(
                f"these files need more than the {self.max_bytes} bytes of {self.path}"
            )

    def _make_room(self, size: int) -> None:
        """Remove the oldest until `size` more bytes fit; unlinking needs no room itself."""
        while self._known.used_bytes + on_disk(size) > self.max_bytes:
            oldest = self._known.pop_oldest()
            if oldest is None:
                return
            (self.path / oldest.name).unlink(missing_ok=True)


def expected_bytes(sizes: Iterable[int]) -> int:
    """What files of these sizes take in a checkpoint, rather too much than too little."""
    return sum(size * 4 // 3 + _ENTRY_OVERHEAD for size in sizes)


def _lines(
    header: Checkpoint,
    data: Mapping[str, object],
    files: Iterable[tuple[Place, Callable[[], FileState]]],
) -> Iterator[bytes]:
    about = {"version": _VERSION, **asdict(header)}
    yield b'{"checkpoint": ' + json.dumps(about).encode() + b",\n"
    try:
        kept = json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise CheckpointRefused(f"the data of a checkpoint is made of JSON values: {exc}") from exc
    yield b'"data": ' + kept.encode() + b',\n"files": [\n'
    # The comma stands before the next entry, at the end of the line before it.
    waiting = b""
    for place, read in files:
        if waiting:
            yield waiting + b",\n"
        state = read()
        content = None if state.content is None else b64encode(state.content).decode()
        entry = {**asdict(place), "mode": state.mode, "content": content}
        waiting = json.dumps(entry).encode()
    yield (waiting + b"\n" if waiting else b"") + b"]}\n"


def _read_header(file: BinaryIO, path: Path) -> Checkpoint:
    line = file.readline().strip()
    raw = _json(line.removesuffix(b",") + b"}", path)
    try:
        about = dict(raw["checkpoint"])  # type: ignore[index]  # whatever it is, the except tells
        version, about["paths"] = about.pop("version"), tuple(about["paths"])
        header = Checkpoint(**about)
    except (TypeError, KeyError, ValueError) as exc:
        raise CheckpointDamaged(f"{path} is no checkpoint") from exc
    if version != _VERSION or header.id != path.stem:
        raise CheckpointDamaged(f"{path} is no checkpoint of this version of Lemon")
    return header


def _entry(raw: object, path: Path) -> tuple[Place, FileState]:
    try:
        assert isinstance(raw, dict)
        content, mode = raw["content"], raw["mode"]
        place = Place(str(raw["shown"]), str(raw["root"]), str(raw["below"]))
        if content is None:
            return place, FileState(None, None)
        return place, FileState(b64decode(content, validate=True), int(mode))
    except (AssertionError, KeyError, TypeError, ValueError) as exc:
        raise CheckpointDamaged(f"{path} has a damaged entry") from exc


def _json(text: bytes, path: Path) -> object:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise CheckpointDamaged(f"{path} is damaged") from exc


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise CheckpointError(f"{path}: checkpoints cannot be used ({exc.strerror})") from exc
