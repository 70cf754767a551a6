"""Programs end with everything they started (specification coding_agent 7 and 11.15)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from coding_agent.tests.harness import lives, pids_in
from coding_agent.tools import process_group
from coding_agent.tools.output import Head
from coding_agent.tools.process import Consumer, Ending, run_process

pytestmark = pytest.mark.anyio

LONG_MS = 60_000


async def run(
    folder: Path,
    script: str,
    *,
    timeout_ms: int = LONG_MS,
    stdout: Consumer | None = None,
    stderr: Consumer | None = None,
) -> Ending:
    with anyio.fail_after(10):
        return await run_process(
            ["/bin/sh", "-c", script],
            cwd=folder,
            environ=os.environ,
            timeout_ms=timeout_ms,
            stdout=stdout or Head(0).take,
            stderr=stderr,
        )


async def reached(fifo: Path) -> None:
    """Wait until the script has written to its fifo."""
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(fifo.read_text)


async def test_exit_code_and_output_come_back(tmp_path: Path) -> None:
    out, err = Head(1_000), Head(1_000)
    script = "pwd; echo problem >&2; cat; exit 3"
    ending = await run(tmp_path, script, stdout=out.take, stderr=err.take)
    assert (ending.exit_code, ending.timed_out) == (3, False)
    assert out.data == f"{tmp_path.resolve()}\n".encode()
    assert err.data == b"problem\n"
    merged = Head(100)
    await run(tmp_path, "echo a; echo b >&2; echo c", stdout=merged.take)
    assert merged.data == b"a\nb\nc\n"


async def test_a_signal_is_told_as_shells_tell_it(tmp_path: Path) -> None:
    assert (await run(tmp_path, "kill -9 $$")).exit_code == 128 + 9


async def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run_process(
            ["/nonexistent"],
            cwd=tmp_path,
            environ={},
            timeout_ms=LONG_MS,
            stdout=Head(0).take,
        )


async def test_a_descendant_that_holds_the_output_does_not_hold_the_caller(
    tmp_path: Path,
) -> None:
    """The program has ended long before its time limit; what it left is ended with it."""
    out = Head(100)
    ending = await run(tmp_path, "sleep 300 & echo $! > pid; echo done", stdout=out.take)
    assert ending.exit_code == 0
    assert out.data == b"done\n"
    assert not any(map(lives, pids_in(tmp_path / "pid")))


async def test_output_that_follows_soon_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    out = Head(100)
    await run(tmp_path, "(read x < go; echo late) & (echo > go) & exit 0", stdout=out.take)
    assert out.data == b"late\n"


async def test_at_the_time_limit_the_whole_group_ends(tmp_path: Path) -> None:
    """Children of children too, and one that does not listen to the polite signal."""
    script = "sh -c 'trap \"\" TERM; echo $$ > pid; sleep 300 & echo $! >> pid; wait' & wait"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_group, "TERM_GRACE_S", 0.2)
        ending = await run(tmp_path, script, timeout_ms=500)
    assert ending == Ending(None)
    assert ending.timed_out
    pids = pids_in(tmp_path / "pid")
    assert len(pids) == 2
    assert not any(map(lives, pids))


async def test_a_program_may_tidy_up_before_it_is_killed(tmp_path: Path) -> None:
    script = (
        "sh -c 'trap \"echo tidy > tidied; exit\" TERM; echo; while :; do sleep 0.01; done' & wait"
    )
    await run(tmp_path, script, timeout_ms=300)
    assert (tmp_path / "tidied").read_text() == "tidy\n"


async def test_cancellation_ends_the_whole_group(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    script = "sleep 300 & echo $$ $! > pid; echo > ready; wait"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, tmp_path, script)
        await reached(tmp_path / "ready")
        tasks.cancel_scope.cancel()
    assert not any(map(lives, pids_in(tmp_path / "pid")))


async def test_without_pidfd_the_end_is_seen_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert (await run(tmp_path, "exit 4")).exit_code == 4
    assert (await run(tmp_path, "exec sleep 300", timeout_ms=200)).timed_out


async def test_a_reader_that_waits_makes_the_program_wait(tmp_path: Path) -> None:
    """Output is never piled up in memory: the pipe is full and the program stands still."""
    held, go = anyio.Event(), anyio.Event()
    sizes: list[int] = []

    async def slow(chunk: bytes) -> None:
        sizes.append(len(chunk))
        held.set()
        await go.wait()

    async with anyio.create_task_group() as tasks:

        async def play() -> None:
            await run(tmp_path, "head -c 1000000 /dev/zero; echo > done", stdout=slow)

        tasks.start_soon(play)
        with anyio.fail_after(5):
            await held.wait()
            assert len(sizes) == 1
            assert not (tmp_path / "done").exists()
            go.set()
    assert sum(sizes) == 1_000_000


async def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = open_files()
    await run(tmp_path, "echo x")
    await run(tmp_path, "sleep 300", timeout_ms=100)
    assert open_files() == before


def open_files() -> Mapping[str, Sequence[str]]:
    kinds: dict[str, list[str]] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("pipe:") or "pidfd" in target:
            kinds.setdefault(target, []).append(name)
    return kinds
