"""Where a master key may be: the keychain of macOS, a variable of the environment, a file."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import anyio

from lemon_core.logs import get_logger
from lemon_core.secret_errors import SecretsError
from lemon_core.single_errors import single_errors

log = get_logger("lemon_core.master_key")

SECURITY_TOOL: Final = Path("/usr/bin/security")
KEYCHAIN_TIMEOUT_MS: Final = 5_000

_NOT_IN_KEYCHAIN: Final = 44  # errSecItemNotFound, as `security` exits with it
_MAX_BYTES: Final = 65_536


class KeychainKey:
    """An entry of the macOS keychain, by the system's own `security` command."""

    name: Final = "keychain"
    on_invalid: Final[Literal["skip", "stop"]] = "skip"

    def __init__(
        self,
        service: str,
        account: str,
        *,
        home: Path,
        tool: Path = SECURITY_TOOL,
        timeout_ms: int = KEYCHAIN_TIMEOUT_MS,
    ) -> None:
        self._service, self._account = service, account
        self._home, self._tool, self._timeout_ms = home, tool, timeout_ms

    def __str__(self) -> str:
        return f"the keychain entry {self._service!r}"

    def available(self) -> bool:
        """Whether this machine has the command."""
        return self._tool.is_file()

    async def fetch(self) -> str | None:
        """The entry, or None when there is none; raises `master_key_unreadable`."""
        search = ("find-generic-password", "-s", self._service, "-a", self._account, "-w")
        done = await self._run(*search)
        if done is None or done.returncode not in (0, _NOT_IN_KEYCHAIN):
            how = "gave no answer in time" if done is None else f"failed (exit {done.returncode})"
            raise SecretsError("master_key_unreadable", f"{self._tool} {how}")
        if done.returncode == _NOT_IN_KEYCHAIN:
            return None
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    async def put(self, text: str, *, force: bool) -> bool:
        """Write the entry; raises `key_file_exists` and `master_key_not_written`."""
        if not force and await self.fetch() is not None:
            raise SecretsError("key_file_exists", f"the keychain has an entry {self._service!r}")
        # The command comes on stdin: arguments of a process are there for everybody to read.
        line = f"add-generic-password -U -s {_quoted(self._service)} -a {_quoted(self._account)}"
        try:
            await self._run("-i", stdin=f"{line} -w {_quoted(text)}\n".encode())
            # In this mode the exit code tells little, so what counts is what can be read back.
            written = await self.fetch() == text
        except SecretsError as exc:
            raise SecretsError("master_key_not_written", f"{self}: {exc}") from exc
        if not written:
            raise SecretsError("master_key_not_written", f"{self._tool} did not write the entry")
        return True

    async def _run(
        self, *arguments: str, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes] | None:
        """The finished command, or None when its time ran out (it is killed then)."""
        try:
            with single_errors(), anyio.move_on_after(self._timeout_ms / 1000):
                return await anyio.run_process(
                    [str(self._tool), *arguments],
                    input=stdin,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    env={"HOME": str(self._home)},
                )
        except (OSError, anyio.BrokenResourceError) as exc:
            raise SecretsError("master_key_unreadable", f"{self._tool} cannot be run") from exc
        return None


class EnvKey:
    """A variable of the environment; it is never written."""

    name: Final = "env"
    on_invalid: Final[Literal["skip", "stop"]] = "stop"

    def __init__(self, environ: Mapping[str, str], variable: str) -> None:
        self._environ, self._variable = environ, variable

    def __str__(self) -> str:
        return self._variable

    def available(self) -> bool:
        """There is always an environment."""
        return True

    async def fetch(self) -> str | None:
        """The variable; blank is none."""
        return self._environ.get(self._variable, "").strip() or None

    async def put(self, text: str, *, force: bool) -> bool:
        """False: nobody but its parent sets a process's environment."""
        return False


class FileKey:
    """A file that only its owner can read, in a folder that only its owner can enter."""

    name: Final = "file"
    on_invalid: Final[Literal["skip", "stop"]] = "stop"

    def __init__(self, path: Path, *, state_dir: Path) -> None:
        """`state_dir` is closed to others when the file goes there; other folders only if new."""
        self._path, self._state_dir = path, state_dir
        self._warned = False

    def __str__(self) -> str:
        return str(self._path)

    def available(self) -> bool:
        """A file can be anywhere."""
        return True

    async def fetch(self) -> str | None:
        """The file's text, or None without a file; raises `master_key_unreadable`."""
        return await anyio.to_thread.run_sync(self._read)

    async def put(self, text: str, *, force: bool) -> bool:
        """Write the file; raises `key_file_exists` and `master_key_not_written`."""
        await anyio.to_thread.run_sync(self._write, text, force)
        return True

    def _read(self) -> str | None:
        try:
            with self._path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(_MAX_BYTES).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise SecretsError(
                "master_key_unreadable", f"{self._path}: cannot be read ({exc.strerror})"
            ) from exc
        if mode & 0o077 and not self._warned:
            self._warned = True
            log.warning("secrets.key_file_open", path=str(self._path), mode=f"{mode:04o}")
        return text.strip()

    def _write(self, text: str, force: bool) -> None:
        # A key is replaced by a whole one: the old file stays until the new one is complete.
        target = self._path.with_name(f"{self._path.name}.new") if force else self._path
        try:
            _make_folder(self._path.parent, tighten=self._path.parent == self._state_dir)
            if force:
                target.unlink(missing_ok=True)
            _write_private(target, text)
            if force:
                target.replace(self._path)
        except FileExistsError as exc:
            raise SecretsError("key_file_exists", f"{self._path}: the file is there") from exc
        except OSError as exc:
            raise SecretsError(
                "master_key_not_written", f"{self._path}: cannot be written ({exc.strerror})"
            ) from exc


def _quoted(text: str) -> str:
    """`text` as one word of a command line of `security`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _make_folder(folder: Path, *, tighten: bool) -> None:
    """Make sure that `folder` is there; new, or with `tighten`, it is its owner's alone (0700)."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if tighten and stat.S_IMODE(folder.stat().st_mode) != 0o700:
        folder.chmod(0o700)


def _write_private(path: Path, text: str) -> None:
    """A new file with mode 0600 from its first moment on; raises FileExistsError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            os.fchmod(fd, 0o600)  # whatever the umask took away
            file.write(f"{text}\n")
            file.flush()
            os.fsync(fd)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
