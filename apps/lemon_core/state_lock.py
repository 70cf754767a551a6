"""One runtime per state directory: an OS lock on `~/.lemon/run/runtime.lock`.

The kernel holds the lock for the open file and lets go of it when the process dies, however it
dies, so there is nothing to clean up and no age to guess. What is written in the file only tells
people and commands who holds it. The file is never removed: a lock on a file that another process
replaced would exclude nobody.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

from lemon_core.clock import Clock
from lemon_core.errors import LemonError

Kind = Literal["server", "one_shot"]
State = Literal["running", "draining"]

SOCKET_PATH_MAX_BYTES: Final = 107
"""What fits into `sockaddr_un` of Linux, with its closing zero byte."""

# A command that looks who holds the lock takes it for an instant; so does a holder that has not yet
# written its name. Both are over within milliseconds.
_RETRIES, _RETRY_MS = 25, 20
_MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a state directory."""

    pid: int
    started_at_ms: int
    kind: Kind
    state: State = "running"
    sockets: tuple[str, ...] = ()


class RuntimeBusy(LemonError):
    """Another runtime owns the state directory; `holder` is None when it has not said who it is."""

    code = "runtime_busy"

    def __init__(self, path: Path, holder: Holder | None) -> None:
        if holder is None:
            who = "another process"
        else:
            kind = "server" if holder.kind == "server" else "one-shot command"
            who = f"a {holder.state} {kind} (process {holder.pid})"
        super().__init__(f"{path}: held by {who}: stop it or wait until it ends")
        self.path, self.holder = path, holder


class StateDirUnusable(LemonError):
    """The folder for lock and sockets cannot be used."""

    code = "state_dir_unusable"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class SocketPathTooLong(LemonError):
    """The system has no room for the path of a Unix socket."""

    code = "socket_path_too_long"

    def __init__(self, path: Path) -> None:
        length = len(os.fsencode(path))
        super().__init__(
            f"{path}: a socket path has at most {SOCKET_PATH_MAX_BYTES} bytes, this one has "
            f"{length}: configure a shorter one, or use a shorter home directory"
        )
        self.path = path


class SocketInUse(LemonError):
    """Somebody else answers on the socket, or the path is not a socket at all."""

    code = "socket_in_use"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class StateLock:
    """The held lock; get it with `hold_state_lock`."""

    def __init__(self, path: Path, fd: int, holder: Holder) -> None:
        self.path, self.holder = path, holder
        self._fd = fd
        self._write()

    def mark_draining(self) -> None:
        """Tell others that this runtime is on its way out."""
        self.holder = replace(self.holder, state="draining")
        self._write()

    def claim_socket(self, path: Path) -> Path:
        """Make `path` free to listen on and record it; returns it.

        Removes what a dead server left there: only the holder of the lock may. Raises
        `SocketPathTooLong`, and `SocketInUse` when somebody answers there or it is no socket.
        """
        check_socket_path(path)
        private_dir(path.parent)
        _remove_stale(path)
        if str(path) not in self.holder.sockets:
            self.holder = replace(self.holder, sockets=(*self.holder.sockets, str(path)))
            self._write()
        return path

    def release(self) -> None:
        """Let go; sockets that are still there are removed first."""
        for name in self.holder.sockets:
            Path(name).unlink(missing_ok=True)
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _write(self) -> None:
        # One write, then the cut: a reader in between sees a whole first line and ignores the rest.
        line = json.dumps(asdict(self.holder), separators=(",", ":")).encode() + b"\n"
        os.pwrite(self._fd, line, 0)
        os.ftruncate(self._fd, len(line))


@asynccontextmanager
async def hold_state_lock(path: Path, kind: Kind, clock: Clock) -> AsyncIterator[StateLock]:
    """Own the state directory of lock file `path` for the block; raises `RuntimeBusy`."""
    private_dir(path.parent)
    fd = await _acquire(path, clock)
    lock = StateLock(path, fd, Holder(os.getpid(), clock.now_ms(), kind))
    try:
        yield lock
    finally:
        lock.release()


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock now; None when nobody does. A holder without a name yet has pid 0."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StateDirUnusable(path, f"cannot be read ({exc.strerror})") from exc
    try:
        if _try_lock(fd, fcntl.LOCK_SH):
            return None
        return _parse(fd) or Holder(0, 0, "server")
    finally:
        os.close(fd)


def check_socket_path(path: Path) -> None:
    """Raise `SocketPathTooLong` for a path that no socket can have."""
    if len(os.fsencode(path)) > SOCKET_PATH_MAX_BYTES:
        raise SocketPathTooLong(path)


def private_dir(path: Path) -> None:
    """Make sure that the folder exists; new, it and its parent are for their owner alone (0700).

    Raises `StateDirUnusable`.
    """
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise StateDirUnusable(path, f"the folder cannot be made ({exc.strerror})") from exc


async def _acquire(path: Path, clock: Clock) -> int:
    """An open file that holds the lock; the caller closes it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise StateDirUnusable(path, f"cannot be opened ({exc.strerror})") from exc
    try:
        for attempt in range(_RETRIES):
            if _try_lock(fd, fcntl.LOCK_EX):
                return fd
            holder = _parse(fd)
            if attempt == _RETRIES - 1 or (holder is not None and _alive(holder.pid)):
                raise RuntimeBusy(path, holder)
            await clock.sleep(_RETRY_MS)
        raise AssertionError("the last attempt returns or raises")
    except BaseException:
        os.close(fd)
        raise


def _try_lock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _parse(fd: int) -> Holder | None:
    """The holder that the file names; None when it names none."""
    line, _, _ = os.pread(fd, _MAX_BYTES, 0).partition(b"\n")
    try:
        raw = json.loads(line)
        kind: Kind = "server" if raw["kind"] == "server" else "one_shot"
        state: State = "draining" if raw["state"] == "draining" else "running"
        sockets = tuple(str(name) for name in raw["sockets"])
        return Holder(int(raw["pid"]), int(raw["started_at_ms"]), kind, state, sockets)
    except (ValueError, TypeError, KeyError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketInUse(path, "is not a socket: move it away or configure another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass  # its queue is full: somebody listens
    raise SocketInUse(path, "another server answers there: stop it or configure another path")
