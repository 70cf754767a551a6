"""The log file beside stderr (specification lemon_core 12)."""

from __future__ import annotations

import gzip
import io
import json
import stat
from pathlib import Path

import pytest

from lemon_core.boot import boot
from lemon_core.log_file import LogFile, log_file
from lemon_core.logs import configure, get_logger
from lemon_core.profiles import Profile
from lemon_core.testing import scrubbed_environ, temp_home

log = get_logger("x")


def events(path: Path) -> list[str]:
    """The events of a log file, or of a compressed one."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line)["event"] for line in text.splitlines()]


def test_lines_go_to_both_each_at_its_own_level(tmp_path: Path) -> None:
    out, path = io.StringIO(), tmp_path / "logs" / "lemon.log"
    configure("warning", form="json", stream=out)
    with log_file(LogFile(path, level="info")) as problem:
        assert problem is None
        log.debug("detail")
        log.info("fact")
        log.warning("trouble", run_id="run_1")
        configure("off", stream=out)  # another start changes stderr and leaves the file alone
        log.info("later")
    log.warning("afterwards")
    assert events(path) == ["fact", "trouble", "later"]
    assert json.loads(path.read_text().splitlines()[1])["run_id"] == "run_1"
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["trouble"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_is_continued_and_rotated_by_size(tmp_path: Path) -> None:
    path = tmp_path / "lemon.log"
    settings = LogFile(path, max_bytes=200, max_files=2)
    for number in range(5):
        with log_file(settings):
            log.info(f"event_{number}", padding="x" * 80)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "lemon.log",
        "lemon.log.1",
        "lemon.log.2",
    ]
    found = [events(tmp_path / name) for name in ("lemon.log.2", "lemon.log.1", "lemon.log")]
    assert found == [["event_2"], ["event_3"], ["event_4"]]


def test_old_files_are_compressed_and_private(tmp_path: Path) -> None:
    path = tmp_path / "lemon.log"
    with log_file(LogFile(path, max_bytes=200, max_files=2, compress=True)):
        for number in range(4):
            log.info(f"event_{number}", padding="x" * 80)
    names = ["lemon.log", "lemon.log.1.gz", "lemon.log.2.gz"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert [events(tmp_path / name) for name in names] == [["event_3"], ["event_2"], ["event_1"]]
    for name in names:
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_file_that_cannot_be_opened_is_told_and_nothing_else_stops(tmp_path: Path) -> None:
    out = io.StringIO()
    configure("info", form="json", stream=out)
    blocked = tmp_path / "in-the-way"
    blocked.write_text("")
    with log_file(LogFile(blocked / "lemon.log")) as problem:
        assert problem is not None
        assert problem.startswith(f"{blocked / 'lemon.log'}: no log file (")
        assert "logging.file" in problem
        log.info("goes on")
    assert "goes on" in out.getvalue()


@pytest.mark.anyio
async def test_a_runtime_logs_to_the_configured_file() -> None:
    with temp_home() as paths:
        paths.state_dir.mkdir()
        paths.config_file.write_text(
            '[logging]\nfile = "~/logs/lemon.log"\nmax_no_bytes = 100000\nmax_no_files = 1\n'
        )
        environ = scrubbed_environ(paths.home)
        async with boot(
            Profile("test"), cwd=paths.home, environ=environ, paths=paths, serve=False
        ) as runtime:
            assert runtime.warnings == ()
            get_logger("x").info("while up")
        get_logger("x").info("when down")
        assert events(paths.home / "logs" / "lemon.log") == ["while up"]


@pytest.mark.anyio
async def test_a_runtime_without_its_log_file_starts_with_a_warning() -> None:
    with temp_home() as paths:
        paths.state_dir.mkdir()
        paths.config_file.write_text('[logging]\nfile = "~/.lemon"\n')
        environ = scrubbed_environ(paths.home)
        async with boot(
            Profile("test"), cwd=paths.home, environ=environ, paths=paths, serve=False
        ) as runtime:
            assert len(runtime.warnings) == 1
            assert "no log file" in runtime.warnings[0]
