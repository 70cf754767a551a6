"""A gateway process that is killed: it says when it has reached a point, and stays there.

    python -m lemon_gateway.tests.victim <store folder> <point>

Points: `begin` (before the begin mark), `start` (in the executor's start_run), `delta` (after one),
`engine_action` (a tool has begun), `end` (before the summary).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Never

import anyio

from lemon_core.clock import SystemClock
from lemon_core.events import Event
from lemon_core.store import KEEP, ChatStateChange, RunStore, StoreSettings, open_store
from lemon_gateway.requests import Action, EngineAction
from lemon_gateway.tests.fakes import Control, ScriptedExecutor, command, running_gateway

RUN_ID = "run_victim"


async def reached(point: str) -> Never:
    """Tell the parent, and wait to be killed."""
    sys.stdout.write(f"{point}\n")
    sys.stdout.flush()
    while True:
        await anyio.sleep_forever()


async def main(folder: Path, point: str) -> None:
    """Run until `point`."""

    class Records(RunStore):
        async def begin(self, run_id: str, digest: bytes, *, session_key: str = "") -> bool:
            if point == "begin":
                await reached(point)
            return await super().begin(run_id, digest, session_key=session_key)

        async def finalize(
            self, run_id: str, summary: Mapping[str, object], chat_state: ChatStateChange = KEEP
        ) -> bool:
            if point == "end":
                await reached(point)
            return await super().finalize(run_id, summary, chat_state)

    async def script(control: Control) -> None:
        if point == "start":
            await reached(point)
        await control.started("sess_1")
        await control.say("half")
        if point == "engine_action":
            tool = Action(id="tool_1", kind="command", title="make install")
            await control.sink.send(EngineAction(control.ref, tool, "started"))
        if point == "end":
            await control.complete(token="sess_1")

    clock = SystemClock()
    async with open_store(StoreSettings("sqlite", folder), clock) as store:
        executor = ScriptedExecutor(script)
        async with running_gateway(executor, clock=clock, store=store, records=Records) as gateway:
            await gateway.runtime.submit_execution(command(RUN_ID))
            async with aclosing(gateway.runtime.subscribe(RUN_ID)) as items:
                async for item in items:
                    if isinstance(item, Event) and item.type == point:
                        await reached(point)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
