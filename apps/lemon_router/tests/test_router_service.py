"""What the answers of RouterService tell, and what a watcher gets who comes back (behaviour 41)."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from lemon_core.bridges import RunNotFound
from lemon_core.events import Delta, Event, RunCompleted
from lemon_core.rpc.router_client import RouterClient
from lemon_core.runs import RunRequest
from lemon_core.store import StoreUnavailable
from lemon_core.testing import temp_home
from lemon_router.admission import Admission
from lemon_router.tests.forms import TCP, Served, served

pytestmark = pytest.mark.anyio

SESSION = "agent:default:main:sub:x"


def request(run_id: str, **fields: object) -> RunRequest:
    return RunRequest.normalize(
        {"run_id": run_id, "prompt": "hi", "session_key": SESSION, **fields}
    )


async def watch(client: RouterClient, run_id: str, after_seq: int = 0) -> list[Event]:
    with anyio.fail_after(5):
        async with aclosing(client.watch(run_id, after_seq)) as events:
            return [event async for event in events]


def lose_answers(s: Served) -> None:
    """The store takes a record, and its answer gets lost."""
    admissions = s.router.others._admissions
    put_new = admissions.put_new

    async def lost(admission: Admission) -> bool:
        await put_new(admission)
        admissions.put_new = put_new  # type: ignore[method-assign]  # once
        raise StoreUnavailable("the connection was lost", outcome_unknown=True)

    admissions.put_new = lost  # type: ignore[method-assign]  # the store is what is away


@pytest.mark.behaviour("lemon_router.41")
async def test_each_outcome_of_a_submission_is_told_apart() -> None:
    with anyio.fail_after(10):
        async with served() as s, s.client() as client:
            taken = await client.submit_run(request("run_1"))
            assert (taken.status, taken.duplicate) == ("accepted", False)
            again = await client.submit_run(request("run_1"))
            assert (again.status, again.duplicate) == ("accepted", True)
            other = await client.submit_run(request("run_1", prompt="something else"))
            assert (other.status, other.reason) == ("rejected", "run_id_conflict")

            lose_answers(s)
            unknown = await client.submit_run(request("run_2"))
            assert (unknown.status, unknown.run_id) == ("outcome_unknown", "run_2")
            # The caller can find out: it was taken, and is not taken again.
            assert await client.admission("run_2") in {"accepted", "queued"}
            assert (await client.submit_run(request("run_2"))).duplicate
            assert await client.admission("run_3") is None

            await s.router.refuse()
            late = await client.submit_run(request("run_4"))
            assert late.status == "unavailable"
            assert await client.admission("run_4") is None


@pytest.mark.behaviour("lemon_router.41")
async def test_who_a_run_is_for_is_told_by_the_connection_and_not_by_the_message() -> None:
    with anyio.fail_after(10):
        async with served(TCP) as s, s.client("secret-of-alice") as alice:
            forged = await alice.submit_run(request("run_1", origin="channel"))
            assert (forged.status, forged.reason) == ("rejected", "origin_not_allowed")
            claimed = {"principal": {"kind": "operator", "id": "operator"}, "owner": "root"}
            await alice.submit_run(request("run_2", meta=claimed))
            context = (await s.engine.wait_submitted("run_2")).command.execution_context
            assert context is not None
            assert (context.principal.kind, context.principal.id) == ("node", "alice")


@pytest.mark.behaviour("lemon_router.41")
async def test_a_watcher_that_was_cut_off_anywhere_gets_exactly_the_rest() -> None:
    with anyio.fail_after(10):
        async with served() as s, s.client() as client:
            await client.submit_run(request("run_1"))
            await s.play("run_1")
            whole = await watch(client, "run_1")
            assert [e.meta["event_seq"] for e in whole] == list(range(1, len(whole) + 1))
            from_engine = [e for e in whole if "engine_event_seq" in e.meta]
            assert [e.meta["engine_event_seq"] for e in from_engine] == [1, 2, 3, 4, 5]
            assert [e.type for e in from_engine][-1] == "run_completed"
            for cut in range(1, len(whole)):
                async with s.client() as other:
                    seen: list[Event] = []
                    async with aclosing(other.watch("run_1")) as events:
                        while len(seen) < cut:
                            seen.append(await anext(events))
                    rest = await watch(client, "run_1", cut)
                assert [e.to_map() for e in (*seen, *rest)] == [e.to_map() for e in whole]


@pytest.mark.behaviour("lemon_router.41")
async def test_after_a_restart_a_watcher_gets_what_is_known_or_not_found() -> None:
    with temp_home() as home, anyio.fail_after(10):
        async with served(home=home) as s, s.client() as client:
            await client.submit_run(request("run_1"))
            await s.play("run_1")
            await watch(client, "run_1")
            await s.router.drained()
        async with served(home=home) as s, s.client() as client:
            told = await watch(client, "run_1", after_seq=3)
            text = "".join(e.payload.text for e in told if isinstance(e.payload, Delta))
            end = told[-1].payload
            assert isinstance(end, RunCompleted)
            assert (text or end.completed.answer, end.completed.ok) == ("hello", True)
            with pytest.raises(RunNotFound):
                await watch(client, "run_9")
