"""Programs as processes, with small programs in place of the measured ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from tools.bench.processes import BenchError, cpu_seconds, resident_mib, run_to_end, running

pytestmark = pytest.mark.anyio

SERVE = "import signal; print('starting'); print('ready at 1', flush=True); signal.pause()"


async def test_a_program_is_there_when_it_says_so_and_gone_after_the_block() -> None:
    with anyio.fail_after(5):
        async with running([sys.executable, "-c", SERVE], ready="ready") as program:
            assert program.line == "ready at 1"
            assert program.ready_s > 0
            assert program.cpu_seconds() >= 0
            assert program.resident_mib() > 1
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)


async def test_a_program_that_ends_at_once_tells_why() -> None:
    with pytest.raises(BenchError, match="no port"), anyio.fail_after(5):
        async with running([sys.executable, "-c", "print('no port')"], ready="ready"):
            pass


async def test_a_command_is_measured_from_start_to_exit(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", "block = b'x' * (60 << 20)"]
    ended = await run_to_end(command, environ=os.environ, cwd=tmp_path, scratch=tmp_path)
    assert ended.wall_s > 0
    # The memory of this test process, which is larger than a bare interpreter, does not count.
    assert 60 < ended.peak_mib < 90


async def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('broken')"]
    with pytest.raises(BenchError, match="ended with 1:\nbroken"):
        await run_to_end(command, environ=os.environ, cwd=tmp_path, scratch=tmp_path)


async def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="missing"):
        await run_to_end([tmp_path / "missing"], environ={}, cwd=tmp_path, scratch=tmp_path)


def test_this_process_has_used_processor_time_and_memory() -> None:
    assert cpu_seconds(os.getpid()) > 0
    assert resident_mib(os.getpid()) > 5
