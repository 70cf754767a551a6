"""A router of a shared store that is killed: it says when it has reached a point, and stays there.

    python -m lemon_router.tests.shared_victim <home> <url> <point>

It runs `run_1`, and `run_2` waits behind it. Points: `submitted` (run_1 is with its gateway, which
is in this process, and has not begun), `begun` (its begin mark is stored).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Never

import anyio

from lemon_core.bridges import SubmitReceipt
from lemon_core.bus import Bus
from lemon_core.clock import SystemClock
from lemon_core.runs import ExecutionCommand
from lemon_core.store import RunStore, StoreSettings, open_store
from lemon_router.tests.scripted_engine import ScriptedEngine
from lemon_router.tests.shared import shared_router


class Engine(ScriptedEngine):
    """Keeps begin marks, as a gateway does."""

    def __init__(self, runs: RunStore, *, begins: bool) -> None:
        super().__init__(Bus())
        self._store, self._begins = runs, begins

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        receipt = await super().submit_execution(command)
        if self._begins:
            await self._store.begin(
                command.run_id, command.digest(), session_key=command.session_key
            )
        return receipt


async def main(home: Path, url: str, point: str) -> Never:
    """Run until `point`, tell the parent, and wait to be killed."""
    clock = SystemClock()
    async with open_store(StoreSettings("postgres", url=url), clock) as store:
        engine = Engine(RunStore(store, clock), begins=point == "begun")
        async with shared_router(url, "victim", engine, home, clock) as victim:
            await victim.submit("run_1")
            await victim.submit("run_2")
            while await victim.router.admission("run_1") != "submitted":
                await anyio.lowlevel.checkpoint()
            sys.stdout.write(f"{point}\n")
            sys.stdout.flush()
            while True:
                await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
