"""What of a project runs code or reaches out besides its configuration, and its digest.

Trust covers these files as they were when it was given (DESIGN ruling 40): a later change, by a
pull or by an agent that may write there, takes it away until the owner trusts the project again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lemon_core.paths import project_state_dir

if TYPE_CHECKING:
    from hashlib import _Hash

CODE_FOLDERS: Final = ("extensions", "wasm-tools", "command")
CODE_FILES: Final = ("mcp.json",)
MAX_FILES: Final = 5_000
MAX_BYTES: Final = 67_108_864


class TooMuchCode(ValueError):
    """More than anybody could have read before trusting it."""


def code_files(directory: Path) -> list[Path]:
    """The files of a project that its trust covers, in order. Raises `TooMuchCode`."""
    found: list[Path] = []
    for path in _walk(project_state_dir(directory)):
        found.append(path)
        if len(found) > MAX_FILES:
            raise TooMuchCode(f"{directory}: its .lemon holds more than {MAX_FILES} files")
    return found


def code_digest(directory: Path) -> str | None:
    """The digest of names and contents; None where there is no such file.

    Raises `OSError`, and `TooMuchCode` above 64 MiB.
    """
    files = code_files(directory)
    if not files:
        return None
    import hashlib  # most projects hold no such file

    digest, root, room = hashlib.sha256(), project_state_dir(directory), MAX_BYTES
    for path in files:
        _name(digest, os.fsencode(path.relative_to(root)))
        if path.is_symlink():
            _name(digest, os.fsencode(os.readlink(path)))
        if not path.is_file():
            continue
        data = path.read_bytes()
        room -= len(data)
        if room < 0:
            raise TooMuchCode(f"{directory}: its .lemon holds more than {MAX_BYTES >> 20} MiB")
        _name(digest, data)
    return digest.hexdigest()


def code_state(directory: Path) -> tuple[object, ...]:
    """A cheap mark of all of it that changes whenever the digest may have. Raises `TooMuchCode`."""
    marks: list[object] = []
    for path in code_files(directory):
        try:
            seen = path.stat()
        except OSError:
            marks.append((str(path), os.readlink(path) if path.is_symlink() else None))
            continue
        marks.append((str(path), seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))
    return tuple(marks)


def _name(digest: _Hash, data: bytes) -> None:
    # With its length, so that no two lists of files give the same bytes.
    digest.update(len(data).to_bytes(8, "big"))
    digest.update(data)


def _walk(root: Path) -> Iterator[Path]:
    for name in CODE_FILES:
        if os.path.lexists(root / name):
            yield root / name
    for name in CODE_FOLDERS:
        folder = root / name
        if folder.is_symlink():
            yield folder
        # A link to a folder stands for itself: what is behind it belongs to somebody else.
        for inner, folders, files in os.walk(folder):
            folders[:] = sorted(each for each in folders if each != "__pycache__")
            links = [each for each in folders if os.path.islink(os.path.join(inner, each))]
            yield from (Path(inner, each) for each in sorted((*files, *links)) if _counts(each))


def _counts(name: str) -> bool:
    return not name.endswith((".pyc", ".pyo"))
