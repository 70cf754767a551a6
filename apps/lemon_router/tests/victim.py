"""A router process that is killed: it says when it has reached a point, and stays there.

    python -m lemon_router.tests.victim <home> <point>

Three messages come in: `run_1` runs, `run_2` and `run_3` are follow-ups behind it. Points:
`accepted` (the record of run_1 is stored, nothing else), `submitted` (run_1 is with the gateway,
not begun), `begun` (its begin mark is stored), `queued` (all three are in), `joined` (before the
store knows that run_2 is part of run_3), `steered` (run_2 was a correction, and the gateway took
it, which the store does not know), `ended` (the summary of run_1 is stored, its record is open).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Never

import anyio

from lemon_core.bridges import SteerMode, SteerOutcome, SubmitReceipt
from lemon_core.bus import Bus
from lemon_core.clock import SystemClock
from lemon_core.runs import ExecutionCommand
from lemon_core.store import RunStore, StoreSettings, open_store
from lemon_router.admission import Admission, AdmissionStore
from lemon_router.tests.rig import SESSION, make_router
from lemon_router.tests.scripted_engine import ScriptedEngine


async def reached(point: str) -> Never:
    """Tell the parent, and wait to be killed."""
    sys.stdout.write(f"{point}\n")
    sys.stdout.flush()
    while True:
        await anyio.sleep_forever()


class Records(AdmissionStore):
    """Stops at the point before or after a write."""

    point = ""

    async def put_new(self, admission: Admission) -> bool:
        stored = await super().put_new(admission)
        if self.point == "accepted":
            await reached(self.point)
        return stored

    async def advance(self, current: Admission, **changes: object) -> Admission | None:
        if changes.get("state") == "absorbed" and self.point in {"joined", "steered"}:
            await reached(self.point)
        if changes.get("ok") is not None and self.point == "ended":
            await reached(self.point)
        return await super().advance(current, **changes)


class Engine(ScriptedEngine):
    """Keeps begin marks and summaries, as a gateway does."""

    def __init__(self, bus: Bus, runs: RunStore, point: str) -> None:
        super().__init__(bus)
        self.store, self.point = runs, point

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        if self.point == "submitted":
            await reached(self.point)
        if self.point == "ended" and command.run_id != "run_1":
            await anyio.sleep_forever()
        receipt = await super().submit_execution(command)
        await self.store.begin(command.run_id, command.digest(), session_key=command.session_key)
        if self.point == "begun":
            await reached(self.point)
        return receipt

    async def steer(
        self, run_id: str, submission_run_id: str, text: str, mode: SteerMode
    ) -> SteerOutcome:
        outcome = await super().steer(run_id, submission_run_id, text, mode)
        summary = {
            "completed": {"ok": True, "answer": "x"},
            "session_key": SESSION,
            "applied_steers": [submission_run_id],
        }
        await self.store.finalize(run_id, summary)
        return outcome


async def main(home: Path, point: str) -> None:
    """Run until `point`."""
    Records.point = point
    clock, bus = SystemClock(), Bus()
    async with (
        open_store(StoreSettings("sqlite", home / "store"), clock) as store,
        anyio.create_task_group() as tasks,
    ):
        runs = RunStore(store, clock)
        engine = Engine(bus, runs, point)
        router = make_router(
            engine, store, bus, clock, home, tasks, admissions=Records(store), runs=runs
        )
        await router.submit({"prompt": "one", "run_id": "run_1"})
        await engine.wait_submitted("run_1")
        if point == "begun":
            await anyio.sleep_forever()
        mode = "steer" if point == "steered" else "followup"
        for run_id, text in (("run_2", "two"), ("run_3", "three")):
            await router.submit({"prompt": text, "run_id": run_id, "queue_mode": mode})
            if point == "steered":
                break
        if point in {"joined", "steered"}:
            await anyio.sleep_forever()
        if point == "queued":
            while await router.admission("run_2") != "absorbed":
                await anyio.lowlevel.checkpoint()
            await reached(point)
        summary = {"completed": {"ok": True, "answer": "x"}, "session_key": SESSION}
        await runs.finalize("run_1", summary)
        engine.complete("run_1")
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
