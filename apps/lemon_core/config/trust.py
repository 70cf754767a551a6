"""Projects whose own configuration file may set everything, because a person read it and said so.

`~/.lemon/trusted_projects.json` (mode 0600) holds, for each directory with links resolved, the
SHA-256 digest of its `.lemon/config.toml`, and that of the code beside it (`trusted_code`). What is
compared are the bytes that are then parsed, so a file cannot change between the question and the
use; one changed byte takes the trust away. A file of trust that is damaged, or that others may
write, trusts nothing.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeGuard

from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings, project_config

Standing = Literal["trusted", "changed", "unknown"]
_VERSION: Final = 1
_DIGEST_LENGTH: Final = 64


class TrustError(LemonError):
    """Trust was not given or taken, or cannot be told."""

    code = "project_trust"


@dataclass(frozen=True, slots=True)
class TrustedProject:
    """A directory, links resolved, and the digests of what was read there; `code` None: nothing."""

    directory: Path
    digest: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class _List:
    """What the file holds."""

    projects: dict[str, str]
    code: dict[str, str]


class TrustedProjects:
    """The projects that the owner of this home trusts."""

    def __init__(self, paths: PathSettings) -> None:
        self._file = paths.trusted_projects

    def trust(self, directory: Path, *, seen: TrustedProject | None = None) -> TrustedProject:
        """Trust `directory` with its files as they are now.

        `seen` is the project as the person has seen it; another one is refused. A directory
        without a file is trusted without one. Raises `TrustError`.
        """
        project = project_as_it_is(directory)
        if seen is not None and seen.digest != project.digest:
            raise TrustError(f"{project_config(directory)}: changed just now: read it again")
        if seen is not None and seen != project:
            raise TrustError(f"{project.directory}: its code changed just now: look again")
        name = str(project.directory)
        with self._changing() as known:
            known.projects[name] = project.digest
            known.code.pop(name, None)
            if project.code is not None:
                known.code[name] = project.code
        return project

    def revoke(self, directory: Path) -> bool:
        """Take the trust back, also from a directory that is gone; False when there was none."""
        if not self._file.exists():
            return False
        with self._changing() as known:
            known.code.pop(str(resolved(directory)), None)
            return known.projects.pop(str(resolved(directory)), None) is not None

    def list(self) -> tuple[TrustedProject, ...]:
        """Every trusted project by directory; raises `TrustError` for a damaged file."""
        known = self._list()
        return tuple(
            TrustedProject(Path(name), known.projects[name], known.code.get(name))
            for name in sorted(known.projects)
        )

    def covers(self, directory: Path, raw: bytes) -> bool:
        """True when `directory` is trusted with a file of exactly these bytes."""
        return self.standing(directory, raw)[0] == "trusted"

    def is_trusted(self, directory: Path) -> bool:
        """True when `directory` is trusted with its files as they are now, its code included.

        This is the question for everything else of a project that runs code or reaches out.
        """
        try:
            now = project_as_it_is(directory)
            known = self._list()
        except TrustError:
            return False
        name = str(now.directory)
        return known.projects.get(name) == now.digest and known.code.get(name) == now.code

    def standing(self, directory: Path, raw: bytes) -> tuple[Standing, str | None]:
        """How `directory` stands with a file of these bytes, and what is wrong with the list."""
        try:
            known = self._list().projects.get(str(resolved(directory)))
        except TrustError as exc:
            return "unknown", str(exc)
        if known is None:
            return "unknown", None
        return ("trusted" if known == digest_of(raw) else "changed"), None

    def _list(self) -> _List:
        try:
            with self._file.open("rb") as file:
                status = os.fstat(file.fileno())
                text = file.read()
        except FileNotFoundError:
            return _List({}, {})
        except OSError as exc:
            raise TrustError(f"{self._file}: cannot be read: {exc.strerror}") from exc
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise TrustError(f"{self._file}: others may write it, so it trusts nothing: chmod 600")
        return self._parsed(text)

    def _parsed(self, text: bytes) -> _List:
        try:
            raw: object = json.loads(text)
        except (ValueError, RecursionError):
            raw = None
        projects = raw.get("projects") if isinstance(raw, Mapping) else None
        code = raw.get("code", {}) if isinstance(raw, Mapping) else None
        if (
            not isinstance(raw, Mapping)
            or raw.get("version") != _VERSION
            or not _are_digests(projects)
            or not _are_digests(code)
        ):
            raise TrustError(
                f"{self._file}: is damaged, so no project is trusted: delete it and trust again"
            )
        return _List(projects, code)

    @contextmanager
    def _changing(self) -> Iterator[_List]:
        """The list, to be changed by one process at a time, written when the block ends."""
        import fcntl

        folder = self._file.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._list()
            yield known
            self._write(known)
            os.fsync(lock)
        except OSError as exc:
            raise TrustError(f"{self._file}: cannot be written: {exc.strerror}") from exc
        finally:
            os.close(lock)

    def _write(self, known: _List) -> None:
        document = {"version": _VERSION, "projects": known.projects, "code": known.code}
        text = json.dumps(document, indent=2, sort_keys=True)
        # mkstemp makes its file 0600 whatever the umask; the old one stays until the new is whole.
        fd, name = tempfile.mkstemp(dir=self._file.parent, prefix=f".{self._file.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(fd)
            os.replace(name, self._file)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise


def resolved(directory: Path) -> Path:
    """`directory` with links resolved, whether it exists or not."""
    return Path(os.path.realpath(directory))


def digest_of(raw: bytes) -> str:
    """The digest that trust is bound to."""
    import hashlib  # most starts meet no project file

    return hashlib.sha256(raw).hexdigest()


def project_as_it_is(directory: Path) -> TrustedProject:
    """The directory with the digests of its files now; that of nothing without one.

    Raises `TrustError`.
    """
    from lemon_core.config.trusted_code import TooMuchCode, code_digest

    if not directory.is_dir():
        raise TrustError(f"{directory}: is not a directory")
    try:
        code = code_digest(directory)
    except TooMuchCode as exc:
        raise TrustError(str(exc)) from exc
    except OSError as exc:
        raise TrustError(f"{exc.filename}: cannot be read: {exc.strerror}") from exc
    return TrustedProject(resolved(directory), digest_of(_raw(directory)), code)


def _are_digests(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(
        isinstance(each, str) and len(each) == _DIGEST_LENGTH for each in value.values()
    )


def _raw(directory: Path) -> bytes:
    from lemon_core.config.source import read_toml

    file = read_toml(project_config(directory))
    if file.problem is not None and not file.raw:
        raise TrustError(file.problem.describe(str(file.path)))
    return file.raw
