"""One runtime per state directory (specification lemon_core 13; DESIGN ruling 22)."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from lemon_core.clock import SystemClock
from lemon_core.state_lock import (
    SOCKET_PATH_MAX_BYTES,
    Holder,
    RuntimeBusy,
    SocketInUse,
    SocketPathTooLong,
    StateDirUnusable,
    check_socket_path,
    hold_state_lock,
    read_holder,
)
from lemon_core.testing import FakeClock, socket_dir
from lemon_core.tests.processes import python, read_line

pytestmark = pytest.mark.anyio

HOLDER = """
import sys, anyio
from pathlib import Path
from lemon_core.clock import SystemClock
from lemon_core.state_lock import hold_state_lock

async def main():
    async with hold_state_lock(Path(sys.argv[1]), "server", SystemClock()) as lock:
        lock.claim_socket(Path(sys.argv[1]).parent / "router.sock")
        print("held", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with socket_dir() as path:
        yield path / "run"


@pytest.fixture
def path(run_dir: Path) -> Path:
    return run_dir / "runtime.lock"


async def test_the_file_says_who_holds_the_lock(path: Path) -> None:
    clock = FakeClock(now_ms=5)
    assert read_holder(path) is None
    async with hold_state_lock(path, "server", clock) as lock:
        me = Holder(os.getpid(), 5, "server")
        assert read_holder(path) == me
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        name = str(lock.claim_socket(path.parent / "router.sock"))
        lock.claim_socket(path.parent / "router.sock")
        lock.mark_draining()
        assert read_holder(path) == Holder(os.getpid(), 5, "server", "draining", (name,))
    assert read_holder(path) is None


@pytest.mark.behaviour("lemon_core.38")
async def test_a_held_lock_is_refused_naming_its_holder(path: Path) -> None:
    async with hold_state_lock(path, "one_shot", SystemClock()) as lock:
        with anyio.fail_after(5), pytest.raises(RuntimeBusy) as caught:
            async with hold_state_lock(path, "server", SystemClock()):
                pytest.fail("two holders")
        assert caught.value.holder == lock.holder
        assert str(caught.value) == (
            f"{path}: held by a running one-shot command (process {os.getpid()}): "
            "stop it or wait until it ends"
        )
    async with hold_state_lock(path, "server", SystemClock()):
        pass


@pytest.mark.behaviour("lemon_core.38")
async def test_the_lock_of_a_killed_process_is_taken_over(path: Path) -> None:
    with python(HOLDER, str(path)) as process:
        assert read_line(process) == "held"
        holder = read_holder(path)
        assert holder is not None
        assert (holder.pid, holder.kind, holder.state) == (process.pid, "server", "running")
        with pytest.raises(RuntimeBusy, match=str(process.pid)):
            async with hold_state_lock(path, "one_shot", SystemClock()):
                pytest.fail("two holders")
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=5)
    assert read_holder(path) is None
    with anyio.fail_after(5):
        async with hold_state_lock(path, "one_shot", SystemClock()) as lock:
            assert read_holder(path) == lock.holder


async def test_somebody_who_only_looks_does_not_keep_a_runtime_out(path: Path) -> None:
    """A look takes the lock for an instant; the start waits it out."""
    clock = FakeClock()
    path.parent.mkdir()
    path.touch()
    looker = os.open(path, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def start() -> None:
                async with hold_state_lock(path, "server", clock):
                    assert read_holder(path) is not None
                    tasks.cancel_scope.cancel()

            tasks.start_soon(start)
            await clock.wait_for_sleepers()
            os.close(looker)
            await clock.advance(20)


async def test_a_nameless_holder_that_stays_is_told(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    other = os.open(path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert read_holder(path) == Holder(0, 0, "server")
    with anyio.fail_after(5), pytest.raises(RuntimeBusy, match="another process"):
        async with hold_state_lock(path, "server", SystemClock()):
            pytest.fail("two holders")
    os.close(other)


async def test_a_stale_socket_is_removed_by_the_holder(path: Path) -> None:
    with python(HOLDER, str(path)) as process:
        assert read_line(process) == "held"
        process.kill()
        process.wait(timeout=5)
    stale = path.parent / "router.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    assert stale.exists()
    async with hold_state_lock(path, "server", SystemClock()) as lock:
        lock.claim_socket(stale)
        assert not stale.exists()
        with socket.socket(socket.AF_UNIX) as alive:
            alive.bind(str(stale))
    assert not stale.exists()


async def test_a_socket_that_somebody_serves_is_refused(path: Path) -> None:
    target = path.parent / "router.sock"
    async with hold_state_lock(path, "server", SystemClock()) as lock:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(target))
            server.listen(1)
            with pytest.raises(SocketInUse, match=str(target)):
                lock.claim_socket(target)
        assert target.exists()
        target.unlink()
        target.write_text("not a socket")
        with pytest.raises(SocketInUse, match="not a socket"):
            lock.claim_socket(target)
        assert target.read_text() == "not a socket"


def test_a_long_socket_path_is_one_clear_line() -> None:
    longest = Path("/" + "x" * (SOCKET_PATH_MAX_BYTES - 1))
    check_socket_path(longest)
    with pytest.raises(SocketPathTooLong) as caught:
        check_socket_path(Path(f"{longest}y"))
    message = str(caught.value)
    assert message.startswith(f"{longest}y: ")
    assert "107" in message
    assert "108" in message
    assert "\n" not in message


async def test_a_folder_that_cannot_be_made_is_one_clear_line(path: Path) -> None:
    path.parent.write_text("in the way")
    with pytest.raises(StateDirUnusable, match=str(path.parent)):
        async with hold_state_lock(path, "server", SystemClock()):
            pytest.fail("no folder, no lock")


@pytest.mark.parametrize("text", ["", "{}", "nonsense\n", '{"pid": "x"}\n', "[1]\n"])
async def test_what_the_file_said_before_does_not_matter(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert read_holder(path) is None
    async with hold_state_lock(path, "server", SystemClock()) as lock:
        assert read_holder(path) == lock.holder
