"""Whether a server runs, what it says of itself, and ending it.

The lock of the state directory is the truth: whoever holds it runs. The record beside it only adds
what the lock does not say, and counts as long as it is the holder's.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from lemon_cli.errors import CliError
from lemon_core.clock import Clock
from lemon_core.paths import PathSettings
from lemon_core.state_lock import Holder, read_holder

State = Literal["running", "not_answering", "one_shot", "draining", "not_running"]

TERM_WAIT_MS: Final = 15_000
KILL_WAIT_MS: Final = 5_000
POLL_MS: Final = 50
_KEY_FILES: Final = ("secrets_master_key", "env", ".env")
# The kernel tells a process's start in ticks since the boot, whose time is in whole seconds.
_START_SLACK_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Record:
    """What a server says of itself: whose program it is, and where it listens."""

    pid: int
    started_at_ms: int
    version: str
    profile: str
    root: str
    listening: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a server runs; `pid` is the holder of the lock, whoever that is."""

    state: State
    pid: int | None = None
    started_at_ms: int | None = None
    record: Record | None = None

    def __str__(self) -> str:
        match self.state:
            case "running":
                return f"running (pid {self.pid}), router healthy"
            case "not_answering":
                return f"held by pid {self.pid}, not answering"
            case "one_shot":
                return f"one-shot run (pid {self.pid})"
            case "draining":
                return f"draining (pid {self.pid})"
            case "not_running":
                return "not running"


async def find_status(paths: PathSettings, clock: Clock) -> Status:
    """What holds the state directory now. Raises `StateDirUnusable`."""
    holder = read_holder(paths.runtime_lock)
    if holder is None:
        return Status("not_running")
    record = read_record(paths, holder)
    state: State = "not_answering"
    if holder.kind == "one_shot":
        state = "one_shot"
    elif holder.state == "draining":
        state = "draining"
    else:
        from lemon_core.rpc.running import running  # grpc is heavy

        if await running(paths, clock) is not None:
            state = "running"
    return Status(state, holder.pid, holder.started_at_ms, record)


# -- the record ------------------------------------------------------------------------------


def record_file(paths: PathSettings) -> Path:
    """Where the server says who it is."""
    return paths.run_dir / "lemon.json"


def write_record(paths: PathSettings, record: Record) -> None:
    """Put the record beside the lock; only the holder of the lock does that."""
    path = record_file(paths)
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(record), file)
    draft.replace(path)


def read_record(paths: PathSettings, holder: Holder) -> Record | None:
    """The holder's record; None for one that a dead server left, or that cannot be read."""
    try:
        raw = json.loads(record_file(paths).read_text())
        record = Record(**raw)
    except (OSError, ValueError, TypeError):
        return None
    is_holders = (record.pid, record.started_at_ms) == (holder.pid, holder.started_at_ms)
    return record if is_holders else None


def remove_record(paths: PathSettings) -> None:
    """Take the record away, as the last act of the server."""
    record_file(paths).unlink(missing_ok=True)


# -- ending ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stopped:
    """How the holder of the lock ended; None: there was none."""

    holder: Holder | None
    was_killed: bool = False


async def stop(
    paths: PathSettings,
    clock: Clock,
    *,
    term_wait_ms: int = TERM_WAIT_MS,
    kill_wait_ms: int = KILL_WAIT_MS,
) -> Stopped:
    """End whoever holds the state directory: SIGTERM, and SIGKILL when that is not enough.

    Raises `CliError` for a process that may not be signalled, or that does not go away.
    """
    holder = read_holder(paths.runtime_lock)
    if holder is None:
        return Stopped(None)
    for number, wait_ms in ((signal.SIGTERM, term_wait_ms), (signal.SIGKILL, kill_wait_ms)):
        if not _signal(paths, holder, number):
            return Stopped(holder)
        if await _gone(paths, clock, holder, wait_ms):
            return Stopped(holder, was_killed=number == signal.SIGKILL)
    raise CliError(f"process {holder.pid} holds {paths.runtime_lock} and does not end")


def _signal(paths: PathSettings, holder: Holder, number: signal.Signals) -> bool:
    """Send the signal; False when the holder is gone already."""
    if not is_holders_process(holder):
        raise CliError(
            f"{paths.runtime_lock} is held, and process {holder.pid} is not who it names: end the "
            "holder by hand"
        )
    try:
        with _opened(holder.pid) as fd:
            # Between the look and the signal its number could be somebody else's.
            if read_holder(paths.runtime_lock) is None:
                return False
            if fd is None:
                os.kill(holder.pid, number)
            else:
                signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    except PermissionError as exc:
        raise CliError(f"process {holder.pid} is another user's: it cannot be ended") from exc
    return True


@contextmanager
def _opened(pid: int) -> Iterator[int | None]:
    """A handle on the process for the block, where the system has such; else None.

    Raises ProcessLookupError.
    """
    if sys.platform != "linux":
        yield None
        return
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


async def _gone(paths: PathSettings, clock: Clock, holder: Holder, wait_ms: int) -> bool:
    until = clock.monotonic_ms() + wait_ms
    while clock.monotonic_ms() < until:
        now = read_holder(paths.runtime_lock)
        if now is None or (now.pid, now.started_at_ms) != (holder.pid, holder.started_at_ms):
            return True
        # A lock tells nobody when it is let go; this is the schedule of looking again.
        await clock.sleep(POLL_MS)
    return False


def is_holders_process(holder: Holder) -> bool:
    """Whether the process of that number was there before the lock was taken."""
    if holder.pid <= 0:
        return False
    started_ms = process_started_ms(holder.pid)
    # Where the system does not tell, the held lock has to do.
    return started_ms is None or started_ms <= holder.started_at_ms + _START_SLACK_MS


def process_started_ms(pid: int) -> int | None:
    """When a process began, as wall time; None when the system does not tell. Source: proc(5)."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(
            line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
        ticks = int(after_name[19])
        return int(boot.split()[1]) * 1_000 + ticks * 1_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


# -- folders and programs --------------------------------------------------------------------


def tighten(paths: PathSettings) -> None:
    """Close the state directory and the files with keys in it to others, if they were open."""
    private = ((paths.state_dir, 0o700), (paths.run_dir, 0o700))
    for path, mode in (*private, *((paths.state_dir / name, 0o600) for name in _KEY_FILES)):
        # What belongs to somebody else stays; whoever has to use it will say so.
        with suppress(FileNotFoundError, PermissionError):
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                path.chmod(mode)


def launcher(paths: PathSettings) -> list[str]:
    """The command that starts this very program, without arguments."""
    installed = paths.state_dir / "bin" / "lemon"
    own = list(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])
    own[0] = sys.executable
    # An installed Lemon is started by the name that survives updates.
    if installed.exists() and paths.versions_dir.resolve() in Path(__file__).resolve().parents:
        return [str(installed)]
    return own
