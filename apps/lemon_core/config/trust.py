"""Projects whose own configuration file may set everything, because a person read it and said so.

`~/.lemon/trusted_projects.json` (mode 0600) holds, for each directory with links resolved, the
SHA-256 digest of its `.lemon/config.toml`. What is compared are the bytes that are then parsed, so
a file cannot change between the question and the use; one changed byte takes the trust away. A file
of trust that is damaged, or that others may write, trusts nothing.
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
from typing import Final, Literal

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
    """A directory, links resolved, and the digest of the file that was read there."""

    directory: Path
    digest: str


class TrustedProjects:
    """The projects that the owner of this home trusts."""

    def __init__(self, paths: PathSettings) -> None:
        self._file = paths.trusted_projects

    def trust(self, directory: Path, *, digest: str | None = None) -> TrustedProject:
        """Trust `directory` with its file as it is now.

        `digest` is that of the file that the person has seen; another one is refused. A directory
        without a file is trusted without one. Raises `TrustError`.
        """
        if not directory.is_dir():
            raise TrustError(f"{directory}: is not a directory")
        project = TrustedProject(resolved(directory), digest_of(_raw(directory)))
        if digest is not None and digest != project.digest:
            raise TrustError(f"{project_config(directory)}: changed just now: read it again")
        with self._changing() as projects:
            projects[str(project.directory)] = project.digest
        return project

    def revoke(self, directory: Path) -> bool:
        """Take the trust back, also from a directory that is gone; False when there was none."""
        if not self._file.exists():
            return False
        with self._changing() as projects:
            return projects.pop(str(resolved(directory)), None) is not None

    def list(self) -> tuple[TrustedProject, ...]:
        """Every trusted project by directory; raises `TrustError` for a damaged file."""
        projects = self._projects()
        return tuple(TrustedProject(Path(name), projects[name]) for name in sorted(projects))

    def covers(self, directory: Path, raw: bytes) -> bool:
        """True when `directory` is trusted with a file of exactly these bytes."""
        return self.standing(directory, raw)[0] == "trusted"

    def is_trusted(self, directory: Path) -> bool:
        """True when `directory` is trusted with its file as it is now.

        This is the question for everything else of a project that runs code or reaches out.
        """
        try:
            return self.covers(directory, _raw(directory))
        except TrustError:
            return False

    def standing(self, directory: Path, raw: bytes) -> tuple[Standing, str | None]:
        """How `directory` stands with a file of these bytes, and what is wrong with the list."""
        try:
            known = self._projects().get(str(resolved(directory)))
        except TrustError as exc:
            return "unknown", str(exc)
        if known is None:
            return "unknown", None
        return ("trusted" if known == digest_of(raw) else "changed"), None

    def _projects(self) -> dict[str, str]:
        try:
            with self._file.open("rb") as file:
                status = os.fstat(file.fileno())
                text = file.read()
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise TrustError(f"{self._file}: cannot be read: {exc.strerror}") from exc
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise TrustError(f"{self._file}: others may write it, so it trusts nothing: chmod 600")
        return self._parsed(text)

    def _parsed(self, text: bytes) -> dict[str, str]:
        try:
            raw: object = json.loads(text)
        except (ValueError, RecursionError):
            raw = None
        projects = raw.get("projects") if isinstance(raw, Mapping) else None
        if (
            not isinstance(raw, Mapping)
            or raw.get("version") != _VERSION
            or not isinstance(projects, dict)
            or not all(isinstance(d, str) and len(d) == _DIGEST_LENGTH for d in projects.values())
        ):
            raise TrustError(
                f"{self._file}: is damaged, so no project is trusted: delete it and trust again"
            )
        return projects

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """The projects, to be changed by one process at a time, written when the block ends."""
        import fcntl

        folder = self._file.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            projects = self._projects()
            yield projects
            self._write(projects)
            os.fsync(lock)
        except OSError as exc:
            raise TrustError(f"{self._file}: cannot be written: {exc.strerror}") from exc
        finally:
            os.close(lock)

    def _write(self, projects: Mapping[str, str]) -> None:
        text = json.dumps({"version": _VERSION, "projects": projects}, indent=2, sort_keys=True)
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


def project_digest(directory: Path) -> str:
    """The digest of the project's file now; that of nothing without one. Raises `TrustError`."""
    return digest_of(_raw(directory))


def _raw(directory: Path) -> bytes:
    from lemon_core.config.source import read_toml

    file = read_toml(project_config(directory))
    if file.problem is not None and not file.raw:
        raise TrustError(file.problem.describe(str(file.path)))
    return file.raw
