"""One kernel: its process, its output, and what scripts may do to it (coding_agent 7, 11.18)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from coding_agent.kernel import Kernel, _CellOutput, kernel_argv
from coding_agent.kernel_runner import MARK
from coding_agent.kernel_wire import KernelGone, Wire
from coding_agent.tests.harness import lives, pids_in
from coding_agent.tests.kernel_tools import Printed, cell, launch_in
from lemon_core.testing import scrubbed_environ

pytestmark = pytest.mark.anyio

Run = Callable[[str], Awaitable[tuple[str, int | None, str | None]]]


@asynccontextmanager
async def kernel_in(folder: Path) -> AsyncIterator[Run]:
    """What runs a script in a kernel and gives what it printed."""
    kernel = Kernel(launch_in(folder))

    async def run(script: str) -> tuple[str, int | None, str | None]:
        printed = Printed()
        with anyio.fail_after(10):
            end = await kernel.run(cell(script, printed))
        assert not end.is_lost
        return printed.data.decode(errors="backslashreplace"), end.exit_code, end.kind

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kernel.serve)
        await kernel.begin()
        yield run
        await kernel.stop()


async def test_how_a_script_ended_is_told(tmp_path: Path) -> None:
    async with kernel_in(tmp_path) as run:
        assert await run("print('a')") == ("a\n", 0, None)
        assert (await run("raise ValueError"))[1:] == (1, "error")
        assert await run("import sys; sys.exit()") == ("", 0, "system_exit")
        assert await run("sys.exit('why')") == ("why\n", 1, "system_exit")
        assert (await run("input()"))[1:] == (1, "unsupported_input")
        assert (await run("raise KeyboardInterrupt"))[1:] == (130, "interrupted")


async def test_the_next_script_has_its_output_whatever_the_last_one_did_to_it(
    tmp_path: Path,
) -> None:
    async with kernel_in(tmp_path) as run:
        await run("import sys, io\nsys.stdout = io.StringIO()\nprint('lost')")
        assert await run("print('found')") == ("found\n", 0, None)
        odd = "import os\nos.write(1, b'\\xff\\x1e')\nprint('ä\\udcff')"
        assert (await run(odd))[0] == "\\xff\x1eä\\udcff\n"
        thread = "import threading\nt = threading.Thread(target=print, args=('late',))\n"
        await run(f"{thread}import time")
        assert (await run("t.start()\nt.join()"))[0] == "late\n"


async def test_a_forked_process_serves_nothing(tmp_path: Path) -> None:
    async with kernel_in(tmp_path) as run:
        fork = "import os\nif os.fork() == 0:\n    raise SystemExit(3)\nprint(os.wait()[1] >> 8)"
        assert await run(fork) == ("3\n", 0, None)
        assert await run("print('still here')") == ("still here\n", 0, None)


async def test_what_a_script_pickles_is_found_again(tmp_path: Path) -> None:
    async with kernel_in(tmp_path) as run:
        await run("class A:\n    x = 1\nimport pickle")
        assert await run("print(pickle.loads(pickle.dumps(A())).x)") == ("1\n", 0, None)


async def test_a_script_that_spoils_the_wire_loses_its_kernel(tmp_path: Path) -> None:
    """It holds the socket, and may write there what it likes."""
    fd = "import os\nfd = next(n for n in range(3, 20) if os.path.realpath(f'/proc/self/fd/{n}')"
    fd += ".startswith(f'/proc/{os.getpid()}/fd/socket'))\n"
    for spoiling in ("b'no frame\\n'", "b'x' * 300_000", "b'\\x1elemon-python\\t[]\\n'"):
        kernel = Kernel(launch_in(tmp_path))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kernel.serve)
            await kernel.begin()
            with anyio.fail_after(10):
                end = await kernel.run(cell(f"{fd}os.write(fd, {spoiling})"))
            assert end.is_lost
            assert kernel.ended.is_set()


async def test_a_kernel_ends_when_its_owner_dies_in_the_middle_of_a_script(tmp_path: Path) -> None:
    """With what it started, and without anybody to tell it so."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(  # noqa: ASYNC220 - its input is a socket of ours
        kernel_argv(sys.executable),
        stdin=theirs.fileno(),
        cwd=tmp_path,
        env=scrubbed_environ(tmp_path),
        start_new_session=True,
    )
    theirs.close()
    script = (
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '300'])\n"
        "open('pid', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "h = open('ready', 'w').write('x')\ntime.sleep(300)"
    )
    os.mkfifo(tmp_path / "ready")
    for request in (
        {"v": 1, "op": "init", "helpers": {}},
        {"v": 1, "op": "eval", "script": script, "token": "t", "end": "e"},
    ):
        ours.sendall(json.dumps(request).encode() + b"\n")
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync((tmp_path / "ready").read_text, abandon_on_cancel=True)
    ours.close()
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(partial(process.wait, 5))
        while any(map(lives, pids_in(tmp_path / "pid"))):
            await anyio.lowlevel.checkpoint()


async def test_output_is_parted_at_the_mark_wherever_the_chunks_end() -> None:
    mark = b"\x1elemon-python\tsecret"
    whole = b"before\x1e\x1elemon" + mark + b"after"
    for size in (1, 2, 7, len(whole)):
        output, printed = _CellOutput(), Printed()
        written = await output.begin(printed.take, mark)
        for start in range(0, len(whole), size):
            await output.take(whole[start : start + size])
        assert printed.data == b"before\x1e\x1elemon"
        assert written.is_set()
        later = Printed()
        await output.begin(later.take, mark)
        assert later.data == b"after"


async def test_frames_without_end_let_everybody_else_go_on() -> None:
    """A script may write frames faster than they are read: time limits have to count then, too."""
    ours, theirs = socket.socketpair()
    theirs.sendall((MARK + b'{"type":"x"}\n') * 100)
    seen: list[str] = []

    async def somebody_else() -> None:
        seen.append("somebody else")

    wire = Wire(ours)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(somebody_else)
        for _ in range(100):
            seen.append((await wire.receive())["type"])
    assert seen.index("somebody else") < 100
    wire.close()
    theirs.close()


async def test_frames_come_whole_and_a_closed_wire_wakes_whoever_waits() -> None:
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    with theirs:
        theirs.sendall(MARK + b'{"type": "ready"}\n' + MARK + b'{"type":')
        assert await wire.receive() == {"type": "ready"}
        theirs.sendall(b' "done"}\n')
        assert await wire.receive() == {"type": "done"}
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    with pytest.raises(KernelGone):
                        await wire.receive()

                tasks.start_soon(wait)
                await anyio.lowlevel.checkpoint()
                wire.close()
    with pytest.raises(KernelGone):
        await wire.send({"op": "eval"})
