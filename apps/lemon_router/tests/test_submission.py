"""What a submission is answered, whatever the store does (specification lemon_router 1 to 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from lemon_core.bridges import ROUTER, RouterBridge, SubmitResult
from lemon_core.bus import Bus
from lemon_core.capabilities import Capabilities
from lemon_core.runs import RunRequest
from lemon_core.store import (
    SessionSettingsStore,
    Store,
    StoreSettings,
    StoreUnavailable,
    open_store,
)
from lemon_core.testing import FakeClock
from lemon_router.admission import Admission, AdmissionStore
from lemon_router.router import Router
from lemon_router.tests.rig import SESSION, Rig, Setup, make_router, rig
from lemon_router.tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio


async def settled() -> None:
    for _ in range(30):
        await anyio.lowlevel.checkpoint()


class Failing(AdmissionStore):
    """Fails as it is told: `before` the write, or `after` it, when nobody can know."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.put = ""
        self.reads_fail = False
        self.changes_fail = False

    async def put_new(self, admission: Admission) -> bool:
        how, self.put = self.put, ""
        if how == "before":
            raise StoreUnavailable("the disk is full")
        stored = await super().put_new(admission) if how != "lost" else False
        if how:
            raise StoreUnavailable("the connection was lost", outcome_unknown=True)
        return stored

    async def advance(self, current: Admission, **changes: object) -> Admission | None:
        if self.changes_fail:
            raise StoreUnavailable("the database is busy")
        return await super().advance(current, **changes)

    async def get(self, run_id: str) -> Admission | None:
        if self.reads_fail:
            raise StoreUnavailable("away")
        return await super().get(run_id)


@dataclass
class Outage:
    """A router whose admission table may fail."""

    router: Router
    engine: ScriptedEngine
    clock: FakeClock
    table: Failing


@asynccontextmanager
async def outage(home: Path) -> AsyncIterator[Outage]:
    clock, engine = FakeClock(), ScriptedEngine(Bus())
    with anyio.fail_after(5):
        async with (
            open_store(StoreSettings("memory"), clock) as store,
            anyio.create_task_group() as tasks,
        ):
            table = Failing(store)
            router = make_router(
                engine, store, engine.bus, clock, home, tasks, Setup(), admissions=table
            )
            yield Outage(router, engine, clock, table)
            tasks.cancel_scope.cancel()


REQUEST = RunRequest(prompt="hi", run_id="run_1")


@pytest.mark.behaviour("lemon_router.3")
async def test_a_write_that_certainly_failed_is_unavailable(tmp_path: Path) -> None:
    async with outage(tmp_path) as o:
        o.table.put = "before"
        result = await o.router.submit(REQUEST)
        assert (result.status, result.run_id) == ("unavailable", "run_1")
        await settled()
        assert o.engine.submitted == []
        assert (await o.router.submit(REQUEST)).status == "accepted"
        await o.engine.wait_submitted("run_1")


@pytest.mark.behaviour("lemon_router.3")
@pytest.mark.parametrize("how", ["after", "lost"])
@pytest.mark.parametrize("sent_again", [True, False])
async def test_a_write_that_may_have_happened_is_unknown_and_found_out(
    how: str, sent_again: bool, tmp_path: Path
) -> None:
    async with outage(tmp_path) as o:
        o.table.put, o.table.reads_fail = how, True
        result = await o.router.submit(REQUEST)
        assert (result.status, result.run_id) == ("outcome_unknown", "run_1")
        await o.clock.wait_for_sleepers(1)
        await o.clock.advance(1_000)
        assert o.engine.submitted == []
        o.table.reads_fail = False
        if sent_again:
            again = await o.router.submit(REQUEST)
            assert (again.status, again.duplicate) == ("accepted", how == "after")
        await o.clock.advance(1_000)
        await settled()
        # It runs once if it was stored, or sent again; and never twice.
        assert o.engine.submitted == (["run_1"] if how == "after" or sent_again else [])
        await o.clock.advance(5_000)
        await settled()
        assert len(o.engine.submitted) <= 1


async def test_an_end_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    async with outage(tmp_path) as o:
        await o.router.submit(REQUEST)
        await o.engine.wait_submitted("run_1")
        await settled()
        o.table.changes_fail = True
        o.engine.complete("run_1")
        await settled()
        stored = await o.table.get("run_1")
        assert stored is not None
        assert not stored.terminal
        o.table.changes_fail = False
        await o.clock.advance(5_000)
        await settled()
        stored = await o.table.get("run_1")
        assert stored is not None
        assert (stored.state, stored.ok) == ("completed", True)


@pytest.mark.behaviour("lemon_router.3")
async def test_behind_the_bridge_everything_is_an_answer(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        capabilities = Capabilities()
        bridge = RouterBridge(capabilities)
        down = await bridge.submit_run(REQUEST)
        assert (down.status, down.run_id) == ("unavailable", "run_1")
        assert await bridge.session_busy(SESSION) is False
        assert await bridge.active_run(SESSION) is None
        assert await bridge.list_active_sessions() == []
        assert await bridge.abort_run("run_1") == "unavailable"

        class Broken(Router):
            async def submit_run(self, request: RunRequest) -> SubmitResult:
                raise RuntimeError("odd")

        broken = Broken.__new__(Broken)
        capabilities.register(ROUTER, broken)
        refused = await bridge.submit_run(REQUEST)
        assert (refused.status, refused.reason) == ("rejected", "RuntimeError: odd")
        capabilities.clear(ROUTER, broken)
        capabilities.register(ROUTER, r.router)
        assert (await bridge.submit_run(REQUEST)).status == "accepted"
        await r.engine.wait_submitted("run_1")
        assert await bridge.session_busy(SESSION)
        assert await bridge.admission("run_1") in {"started", "submitted"}
        assert await bridge.counts() == {"active": 1, "queued": 0, "completed_today": 0}


MODELS: dict[str, object] = {
    "defaults": {"model": "of the config"},
    "profiles": {"named": {"model": "of the profile", "system_prompt": "be brief"}},
}


@pytest.mark.behaviour("lemon_router.5")
async def test_which_model_a_run_gets(tmp_path: Path) -> None:
    async with rig(tmp_path, config=MODELS) as r:
        sticky = SessionSettingsStore(r.store, r.clock)

        async def meta_of(run_id: str, **fields: object) -> dict[str, object]:
            key = f"agent:{fields.get('agent_id', 'default')}:main:sub:{fields.pop('sub', run_id)}"
            assert (await r.submit(run_id, session_key=key, **fields)).status == "accepted"
            return (await r.engine.wait_submitted(run_id)).command.meta

        assert (await meta_of("run_1"))["model"] == "of the config"
        named = await meta_of("run_2", agent_id="named")
        assert (named["model"], named["system_prompt"]) == ("of the profile", "be brief")
        chosen = await sticky.patch(
            "agent:named:main:sub:s", model="of the session", thinking_level="high"
        )
        kept = await meta_of("run_3", agent_id="named", sub="s")
        assert (kept["model"], kept["thinking_level"]) == ("of the session", "high")
        r.engine.complete("run_3")
        asked = await meta_of("run_4", agent_id="named", model="of the request")
        assert asked["model"] == "of the request"
        in_meta = {"model": "of the meta", "thinking_level": "sideways", "system_prompt": "mine"}
        loose = await meta_of("run_5", agent_id="named", meta=in_meta)
        assert (loose["model"], loose.get("thinking_level"), loose["system_prompt"]) == (
            "of the meta",
            None,
            "mine",
        )
        assert await sticky.get("agent:named:main:sub:s") == chosen


async def test_spoken_words_are_marked(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.submit("run_1", meta={"voice_transcribed": True})
        run = await r.engine.wait_submitted("run_1")
        assert run.command.prompt == "[transcribed from speech] hi"


@pytest.mark.behaviour("lemon_router.108")
async def test_after_an_outage_the_next_messages_run(tmp_path: Path) -> None:
    """Field report: a provider outage leaves the session running for ever."""
    async with rig(tmp_path) as r:
        await r.submit("run_1")
        await r.engine.wait_submitted("run_1")
        r.engine.start("run_1")
        r.engine.complete("run_1", ok=False, answer="", error="provider_unavailable")
        await r.router.drained()
        assert not await r.router.session_busy(SESSION)
        for run_id in ("run_2", "run_3"):
            result = await r.submit(run_id, queue_mode="interrupt")
            assert result.detail == {"disposition": "started"}
            await r.engine.wait_submitted(run_id)
            r.engine.complete(run_id)
            await r.router.drained()
        assert r.engine.cancelled == []


async def parent_of(r: Rig) -> object:
    await r.submit("run_1")
    return (await r.engine.wait_submitted("run_1")).command.execution_context


@pytest.mark.behaviour("lemon_router.109")
@pytest.mark.parametrize("restart", [True, False])
async def test_results_of_children_reach_their_parent_s_session(
    restart: bool, tmp_path: Path
) -> None:
    """Field report: the child is done but its result never reaches the parent."""
    async with rig(tmp_path) as r:
        r.engine.takes_steers = False
        parent = await parent_of(r)
        for number in (2, 3):
            meta = {"delegated_auto_followup": {"run_id": f"child_{number}"}}
            result = await r.submit(
                f"run_{number}",
                prompt=f"result {number}",
                queue_mode="followup",
                meta=meta,
                execution_context=parent,
            )
            assert result.detail is not None
            assert result.detail["disposition"] == "steering"
        await r.submit("run_4", prompt="next")
        await settled()
        engine, router = r.engine, r.router
        async with anyio.create_task_group() as tasks:
            if restart:
                await r.runs.begin("run_1", b"d", session_key=SESSION)
                r.store.memory_table("runs").pop("run_1", None)
                engine = ScriptedEngine(Bus())
                router = make_router(engine, r.store, engine.bus, r.clock, tmp_path, tasks)
                await router.recover(r.runs)
            else:
                engine.complete("run_1")
            prompts = []
            for run_id in ("run_2", "run_3", "run_4"):
                # Restored, they stand in the order in which they came; here the results fell back.
                run = await engine.wait_submitted(run_id) if restart else None
                if run is None:
                    await settled()
                    active = await router.active_run(SESSION)
                    run = engine.runs[str(active)]
                prompts.append(run.command.prompt)
                engine.complete(run.command.run_id)
                await settled()
            assert sorted(prompts) == ["next", "result 2", "result 3"]
            tasks.cancel_scope.cancel()
