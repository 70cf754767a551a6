"""Starting, finding and ending the server (specification lemon_cli 2.4, 10.13 and 10.14)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from lemon_cli import lifecycle
from lemon_cli.errors import CliError
from lemon_cli.lifecycle import Record, find_status, read_record, record_file, stop, write_record
from lemon_cli.output_file import OutputFile, last_lines
from lemon_cli.systemd import unit_text
from lemon_cli.tests.home import Home
from lemon_core.clock import SystemClock
from lemon_core.paths import PathSettings
from lemon_core.state_lock import Holder, hold_state_lock, read_holder

pytestmark = pytest.mark.anyio
LIMIT_S = 60

PROGRAM = """
import sys
from lemon_cli.cli import COMMANDS
from lemon_cli.main import main
from lemon_core.profiles import Profile
main(Profile("fake", components=("lemon_cli.tests.fake_server:component",),
             commands={"lemon_cli": COMMANDS}))
"""
# Holds the lock as a server would, says so, and goes on whatever SIGTERM says.
STUBBORN = """
import signal, sys, anyio
from pathlib import Path
from lemon_core.clock import SystemClock
from lemon_core.state_lock import hold_state_lock
signal.signal(signal.SIGTERM, signal.SIG_IGN)
async def hold():
    async with hold_state_lock(Path(sys.argv[1]), sys.argv[2], SystemClock()):
        print("held", flush=True)
        await anyio.sleep_forever()
anyio.run(hold)
"""


def lemon(home: Home, *argv: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv],
        env={**home.environ, "PYTHONPATH": ":".join(sys.path), **extra},
        cwd=home.paths.home,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture
def server(home: Home) -> Iterator[Home]:
    """A home whose server, if a test leaves one, is killed."""
    yield home
    holder = read_holder(home.paths.runtime_lock)
    if holder is not None and holder.pid not in (0, os.getpid()):
        os.kill(holder.pid, signal.SIGKILL)


@pytest.fixture
def stubborn(home: Home) -> Iterator[Holder]:
    home.paths.run_dir.mkdir(mode=0o700, parents=True)
    child = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, str(home.paths.runtime_lock), "server"],
        env={**home.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        holder = read_holder(home.paths.runtime_lock)
        assert holder is not None
        yield holder
        child.kill()


@pytest.mark.behaviour("lemon_cli.13")
def test_daemon_status_stop(server: Home) -> None:
    begun = lemon(server, "daemon")
    assert begun.returncode == 0, begun
    holder = read_holder(server.paths.runtime_lock)
    assert holder is not None
    assert f"(pid {holder.pid})" in begun.stdout
    assert os.getsid(holder.pid) == holder.pid
    log = server.paths.run_dir / "lemon.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert server.paths.run_dir.stat().st_mode & 0o777 == 0o700
    status = lemon(server, "status")
    assert (status.returncode, status.stderr) == (0, "")
    assert status.stdout.startswith(f"running (pid {holder.pid}), router healthy\n")
    assert str(server.paths.router_socket) in status.stdout
    document = json.loads(lemon(server, "status", "--json").stdout)
    assert (document["state"], document["pid"]) == ("running", holder.pid)
    again = lemon(server, "daemon")
    assert (again.returncode, again.stdout.startswith("Lemon is running already")) == (0, True)
    started = lemon(server, "start")
    assert (started.returncode, started.stdout.startswith("Lemon is running already")) == (0, True)
    logged = lemon(server, "daemon", "logs", "--lines", "1")
    assert logged.stdout.startswith("In another terminal")
    ended = lemon(server, "stop")
    assert ended.stdout == f"The server (pid {holder.pid}) was stopped.\n"
    assert not record_file(server.paths).exists()
    after = lemon(server, "status")
    assert (after.returncode, after.stdout.splitlines()[0]) == (1, "not running")
    twice = lemon(server, "stop")
    assert (twice.returncode, twice.stderr) == (0, "lemon: Lemon is not running\n")


@pytest.mark.behaviour("lemon_cli.13")
def test_restart_is_another_process(server: Home) -> None:
    assert lemon(server, "restart").returncode == 0
    first = read_holder(server.paths.runtime_lock)
    assert lemon(server, "restart").returncode == 0
    second = read_holder(server.paths.runtime_lock)
    assert first is not None
    assert second is not None
    assert first.pid != second.pid
    assert lemon(server, "stop").returncode == 0


def test_a_daemon_that_fails_tells_why(server: Home) -> None:
    failed = lemon(server, "daemon", FAKE_SERVER="fail")
    assert failed.returncode == 1
    assert "the server ended at once (exit 1)" in failed.stderr
    assert "lemon_cli did not start: OSError: no luck" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert read_holder(server.paths.runtime_lock) is None


def test_an_unknown_profile_is_named(server: Home) -> None:
    failed = lemon(server, "start", "--profile", "odd", LEMON_RUNTIME_PROFILE="odd")
    assert failed.returncode == 2
    assert "no profile 'odd'; this one is fake" in failed.stderr


@pytest.mark.behaviour("lemon_cli.13")
async def test_a_stale_record_and_a_stale_socket_are_nobody(home: Home) -> None:
    home.paths.run_dir.mkdir(mode=0o700, parents=True)
    write_record(home.paths, Record(os.getpid(), 1, "1", "p", "/"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home.paths.router_socket))
    assert (await find_status(home.paths, SystemClock())).state == "not_running"
    assert (await stop(home.paths, SystemClock())).holder is None
    async with hold_state_lock(home.paths.runtime_lock, "server", SystemClock()):
        status = await find_status(home.paths, SystemClock())
        assert (status.state, status.pid, status.record) == ("not_answering", os.getpid(), None)


@pytest.mark.behaviour("lemon_cli.13")
async def test_a_foreign_listener_is_no_router(home: Home) -> None:
    home.paths.run_dir.mkdir(mode=0o700, parents=True)
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(home.paths.router_socket))
        foreign.listen()
        assert (await find_status(home.paths, SystemClock())).state == "not_running"
        async with hold_state_lock(home.paths.runtime_lock, "server", SystemClock()):
            with anyio.fail_after(10):
                status = await find_status(home.paths, SystemClock())
    assert str(status) == f"held by pid {os.getpid()}, not answering"


async def test_other_holders_are_told_apart(home: Home) -> None:
    async with hold_state_lock(home.paths.runtime_lock, "one_shot", SystemClock()):
        status = await find_status(home.paths, SystemClock())
        assert str(status) == f"one-shot run (pid {os.getpid()})"
    async with hold_state_lock(home.paths.runtime_lock, "server", SystemClock()) as lock:
        lock.mark_draining()
        status = await find_status(home.paths, SystemClock())
        assert str(status) == f"draining (pid {os.getpid()})"


@pytest.mark.behaviour("lemon_cli.13")
async def test_a_reused_pid_is_not_signalled(home: Home) -> None:
    """The lock names a process that began after the lock was taken: it is somebody else."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    async with await anyio.open_process(command, stdout=None, stderr=None) as child:
        async with hold_state_lock(home.paths.runtime_lock, "server", SystemClock()):
            line = json.dumps(
                {
                    "pid": child.pid,
                    "started_at_ms": 1_000,
                    "kind": "server",
                    "state": "running",
                    "sockets": [],
                }
            )
            home.paths.runtime_lock.write_text(line + "\n")
            with pytest.raises(CliError, match="is not who it names"):
                await stop(home.paths, SystemClock(), term_wait_ms=100, kill_wait_ms=100)
        assert child.returncode is None
        child.kill()


async def test_what_does_not_end_is_killed(home: Home, stubborn: Holder) -> None:
    with anyio.fail_after(LIMIT_S):
        done = await stop(home.paths, SystemClock(), term_wait_ms=200)
    assert (done.holder, done.was_killed) == (stubborn, True)
    assert read_holder(home.paths.runtime_lock) is None


@pytest.mark.behaviour("lemon_cli.14")
def test_stop_works_after_an_update(server: Home) -> None:
    """`versions/current` points elsewhere by now: the holder is found by the lock."""
    versions = server.paths.versions_dir
    for name in ("1", "2"):
        (versions / name).mkdir(parents=True)
    current = versions / "current"
    current.symlink_to("1")
    assert lemon(server, "daemon").returncode == 0
    holder = read_holder(server.paths.runtime_lock)
    assert holder is not None
    record = read_record(server.paths, holder)
    assert record is not None
    assert Path(record.root).is_dir()
    current.unlink()
    current.symlink_to("2")
    assert lemon(server, "stop").stdout == f"The server (pid {holder.pid}) was stopped.\n"


def test_an_open_state_directory_is_closed(home: Home) -> None:
    home.paths.run_dir.mkdir(parents=True)
    for folder in (home.paths.state_dir, home.paths.run_dir):
        folder.chmod(0o755)
    key = home.paths.state_dir / "secrets_master_key"
    key.write_text("k")
    key.chmod(0o644)
    lifecycle.tighten(home.paths)
    for folder in (home.paths.state_dir, home.paths.run_dir):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_record_of_another_time_does_not_count(home: Home) -> None:
    home.paths.run_dir.mkdir(parents=True)
    record = Record(7, 70, "1", "p", "/", {"router": "unix:x"})
    write_record(home.paths, record)
    assert read_record(home.paths, Holder(7, 70, "server")) == record
    assert read_record(home.paths, Holder(7, 71, "server")) is None
    assert read_record(home.paths, Holder(8, 70, "server")) is None
    record_file(home.paths).write_text("{}")
    assert read_record(home.paths, Holder(7, 70, "server")) is None


# -- output ------------------------------------------------------------------------------------


def test_a_full_output_file_is_put_aside(home: Home) -> None:
    path = home.paths.home / "lemon.log"
    output = OutputFile(path, max_bytes=4, max_files=2)
    for text in ("one\n", "two\n", "three\n", "now"):
        output.rotate()
        path.write_text(text)
    assert path.read_text() == "now"
    assert (path.with_name("lemon.log.1").read_text()) == "three\n"
    assert (path.with_name("lemon.log.2").read_text()) == "two\n"
    assert not path.with_name("lemon.log.3").exists()
    assert output.rotate() is False
    assert last_lines(path.with_name("lemon.log.1"), 5) == ["three"]
    assert last_lines(home.paths.home / "none", 5) == []


# -- systemd -----------------------------------------------------------------------------------

SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$HOME/systemctl.log"
case "$2" in show-environment) exit ${SYSTEMCTL_CODE:-0};; esac
[ "${SYSTEMCTL_CODE:-0}" = 0 ] || { echo "Failed to connect to bus" >&2; exit 1; }
"""


def with_systemctl(home: Home, **extra: str) -> Path:
    folder = home.paths.home / "bin"
    folder.mkdir()
    (folder / "systemctl").write_text(SYSTEMCTL)
    (folder / "systemctl").chmod(0o755)
    home.extra = {"PATH": f"{folder}:{os.environ['PATH']}", **extra}
    return home.paths.home / "systemctl.log"


@pytest.mark.behaviour("lemon_cli.13")
def test_the_unit_is_installed_started_and_removed(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    log = with_systemctl(home)
    unit = home.paths.home / ".config" / "systemd" / "user" / "lemon.service"
    assert home.lemon("daemon", "install") == 0
    text = unit.read_text()
    assert '"start" "--log-file"' in text
    assert str(home.paths.run_dir / "lemon.log") in text
    assert unit.stat().st_mode & 0o777 == 0o600
    assert home.lemon("daemon", "install") == 0
    assert unit.read_text() == text
    assert log.read_text().splitlines()[:4] == [
        "--user show-environment",
        "--user daemon-reload",
        "--user enable lemon.service",
        "--user start lemon.service",
    ]
    log.write_text("")
    assert home.lemon("restart") == 0
    assert log.read_text() == "--user start lemon.service\n"
    log.write_text("")
    assert home.lemon("daemon", "uninstall") == 0
    assert log.read_text().splitlines() == [
        "--user disable --now lemon.service",
        "--user daemon-reload",
    ]
    assert not unit.exists()
    capsys.readouterr()
    assert home.lemon("daemon", "uninstall") == 0
    assert "there is no unit" in capsys.readouterr().err


@pytest.mark.behaviour("lemon_cli.13")
def test_without_systemd_one_line_says_so(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    empty = home.paths.home / "empty"
    empty.mkdir()
    home.extra = {"PATH": str(empty)}
    assert home.lemon("daemon", "install") == 1
    assert capsys.readouterr().err.startswith("lemon: there is no systemctl on this machine")
    with_systemctl(home, SYSTEMCTL_CODE="1")
    assert home.lemon("daemon", "install") == 1
    err = capsys.readouterr().err
    assert err.startswith("lemon: systemctl --user show-environment failed")
    assert err.count("\n") == 1
    assert not (home.paths.home / ".config").exists()


def test_the_unit_quotes_what_systemd_would_read_otherwise() -> None:
    text = unit_text(["/a b/lemon", "100%", "$HOME"], {"PATH": "/x:/y%", "SECRET_KEY": "s"})
    assert 'ExecStart="/a b/lemon" "100%%" "$$HOME"' in text
    assert 'Environment="PATH=/x:/y%%"' in text
    assert "SECRET" not in text


def test_logs_without_a_log(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert home.lemon("daemon", "logs") == 1
    assert "lemon daemon starts" in capsys.readouterr().err


def test_version(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert home.lemon("version") == 0
    assert capsys.readouterr().out.startswith("lemon ")
    assert home.lemon("version", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["profile"] == "test"
    assert {"version", "commit", "python", "platform"} <= document.keys()
    assert not PathSettings(home.paths.home).state_dir.exists()
