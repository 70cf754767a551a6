"""Writing archives whose bytes follow from their contents alone.

An archive may come in pieces, each a gzip stream of its own: readers take them for one. So the
packages from PyPI, nearly all of the bytes, are packed once and not at each change of a source.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import IO, Final, Protocol

# 1980 and not 0, which tar calls implausible.
MTIME_S: Final = 315_532_800
END: Final = bytes(2 * tarfile.BLOCKSIZE)
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """A file of the archive."""

    path: str
    sha256: str
    size: int

    def as_json(self) -> dict[str, object]:
        """For another program."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Content:
    """What a file of the archive is made of."""

    source: Path | bytes
    executable: bool = False


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> int:
        """Take all of them."""


class Piece:
    """One piece of an archive, being written."""

    def __init__(self, out: Sink) -> None:
        self._out = out
        self._folders: set[str] = set()

    def add_all(self, contents: Mapping[str, Content]) -> list[Packed]:
        """Write the files in the order of their paths, each after the folders above it."""
        return [self._add(path, contents[path]) for path in sorted(contents)]

    def _add(self, path: str, content: Content) -> Packed:
        self._add_folders(PurePosixPath(path).parent)
        source = content.source
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            self._out.write(_header(path, size, mode=0o755 if content.executable else 0o644))
            digest = sha256()
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                self._out.write(chunk)
        self._out.write(bytes(-size % tarfile.BLOCKSIZE))
        return Packed(path, digest.hexdigest(), size)

    def _add_folders(self, folder: PurePosixPath) -> None:
        for parent in (*reversed(folder.parents), folder):
            name = str(parent)
            if name != "." and name not in self._folders:
                self._folders.add(name)
                self._out.write(_header(name, 0, mode=0o755, kind=tarfile.DIRTYPE))


@contextmanager
def new_piece(out: IO[bytes], *, is_last: bool) -> Iterator[Piece]:
    """A piece that is appended to `out`; the last one ends the archive."""
    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=out, mtime=0) as stream:
        yield Piece(stream)
        if is_last:
            stream.write(END)


def checksums(packed: Iterable[Packed]) -> bytes:
    """The text that `sha256sum --check` reads, sorted by path."""
    rows = sorted(packed, key=lambda one: one.path)
    return "".join(f"{one.sha256}  {one.path}\n" for one in rows).encode()


def _header(path: str, size: int, *, mode: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.type, info.mtime = size, mode, kind, MTIME_S
    info.uname = info.gname = "root"
    return info.tobuf(tarfile.GNU_FORMAT)
