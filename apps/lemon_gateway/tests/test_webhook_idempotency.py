"""Requests under a key: specification lemon_gateway 6.3, row by row."""

from __future__ import annotations

import hashlib
from pathlib import Path

import anyio
import pytest

from lemon_core.bridges import SubmitResult
from lemon_core.events import Completion
from lemon_core.idempotency import IDEMPOTENCY, RETENTION_MS, Idempotency
from lemon_core.resume import ResumeToken
from lemon_core.runs import RunRequest
from lemon_gateway.tests.webhook_rig import Rig, receiver, webhook_rig

pytestmark = pytest.mark.anyio

HELLO = {"prompt": "hello"}
SYNC = {"mode": "sync"}
LEASE_MS = 60_000
NO_RECEIPT = "durable receipt unavailable"
BAD_KEY = (422, {"error": "invalid idempotency key"})


def known(rig: Rig, mode: str = "async") -> dict[str, object]:
    return {
        "run_id": rig.router.requests[0].run_id,
        "session_key": "agent:default:main",
        "mode": mode,
    }


def processing(rig: Rig) -> tuple[int, dict[str, object]]:
    found = known(rig)
    del found["mode"]
    return 202, {**found, "status": "processing"}


@pytest.mark.behaviour("lemon_gateway.28")
async def test_a_repeat_gets_the_same_answer_and_submits_nothing(tmp_path: Path) -> None:
    """Rows: nothing there, and completed."""
    async with webhook_rig(tmp_path) as rig:
        first = await rig.post(HELLO, key="k")
        assert first == (202, {**known(rig), "status": "accepted"})
        assert await rig.post(HELLO, key="k") == first
        assert len(rig.router.requests) == 1
        ((row, value),) = await rig.store.load_all(IDEMPOTENCY)
        assert row == f"webhook:ci:{hashlib.sha256(b'k').hexdigest()}"
        assert isinstance(value, dict)
        assert value["state"] == "completed"
        assert value["receipt"]["response_status"] == 202
        assert (await rig.post(HELLO, key="another"))[1]["run_id"] != first[1]["run_id"]
        assert (await rig.post(HELLO))[1]["run_id"] != first[1]["run_id"]


@pytest.mark.behaviour("lemon_gateway.28")
async def test_a_sync_answer_is_kept_with_all_that_it_said(tmp_path: Path) -> None:
    async with receiver() as there:
        row = {**SYNC, "callback_url": there.url, "allow_private_callback_hosts": True}
        async with webhook_rig(tmp_path, row) as rig:
            rig.router.script = rig.router.completes
            first = await rig.post(HELLO, key="k")
            assert first[0] == 200
            assert first[1]["callback"] == {"status": "sent", "http_status": 204}
            assert await rig.post(HELLO, key="k") == first
    assert len(rig.router.requests) == len(there.bodies) == 1


@pytest.mark.behaviour("lemon_gateway.28")
async def test_of_two_requests_at_the_same_time_one_is_submitted(tmp_path: Path) -> None:
    """Row: pending with a live lease."""
    async with webhook_rig(tmp_path) as rig:
        asked, go_on = anyio.Event(), anyio.Event()

        async def slow(request: RunRequest) -> SubmitResult:
            asked.set()
            await go_on.wait()
            return SubmitResult("accepted", request.run_id)

        rig.router.script = slow
        answers: list[tuple[int, dict[str, object]]] = []

        async def first() -> None:
            answers.append(await rig.post(HELLO, key="k"))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first)
                await asked.wait()
                assert await rig.post(HELLO, key="k") == processing(rig)
                go_on.set()
        assert answers == [(202, {**known(rig), "status": "accepted"})]
        assert len(rig.router.requests) == 1


@pytest.mark.behaviour("lemon_gateway.28")
async def test_a_run_that_was_taken_and_goes_on_is_accepted(tmp_path: Path) -> None:
    """Row: submitted. A sync request timed out, or its process died."""
    async with webhook_rig(tmp_path, {**SYNC, "timeout_ms": 20}) as rig:
        assert (await rig.post(HELLO, key="k"))[0] == 500
        record = await rig.record()
        assert record is not None
        assert record["state"] == "submitted"
        again = await rig.post(HELLO, key="k")
        assert again == (202, {**known(rig, "sync"), "status": "accepted"})
        await rig.clock.advance(10 * LEASE_MS)
        assert await rig.post(HELLO, key="k") == again
        assert len(rig.router.requests) == 1


@pytest.mark.behaviour("lemon_gateway.28")
async def test_an_expired_lease_is_taken_over_and_submitted_as_the_same_run(tmp_path: Path) -> None:
    """Row: pending with a lease that is over, as a crash leaves it."""
    async with webhook_rig(tmp_path) as rig:
        first = await rig.post(HELLO, key="k")
        await rig.change_record(state="pending")
        assert await rig.post(HELLO, key="k") == processing(rig)
        await rig.clock.advance(LEASE_MS)

        async def has_it(request: RunRequest) -> SubmitResult:
            return SubmitResult("accepted", request.run_id, duplicate=True)

        rig.router.script = has_it
        assert await rig.post(HELLO, key="k") == first
        assert [request.run_id for request in rig.router.requests] == [first[1]["run_id"]] * 2
        assert rig.router.requests[0].prompt == rig.router.requests[1].prompt
        record = await rig.record()
        assert record is not None
        assert record["state"] == "completed"


@pytest.mark.parametrize("ended", ["with a summary", "without one"])
async def test_a_run_that_ended_before_the_takeover_is_told_of(ended: str, tmp_path: Path) -> None:
    """Its end will not be published once more."""
    async with webhook_rig(tmp_path, SYNC) as rig:
        rig.router.script = rig.router.completes
        _, first = await rig.post(HELLO, key="k")
        run_id = first["run_id"]
        assert isinstance(run_id, str)
        if ended == "with a summary":
            resume = ResumeToken(engine="lemon", value="sess_1")
            completed = Completion(ok=True, answer="before the crash", run_id=run_id, resume=resume)
            await rig.runs.begin(run_id, b"digest", session_key="agent:default:main")
            await rig.runs.finalize(run_id, {"completed": completed})
        else:
            rig.router.admissions[run_id] = "failed"

        async def has_it(request: RunRequest) -> SubmitResult:
            return SubmitResult("accepted", request.run_id, duplicate=True)

        rig.router.script = has_it
        await rig.change_record(state="pending")
        await rig.clock.advance(LEASE_MS)
        status, body = await rig.post(HELLO, key="k")
    completed_body = body["completed"]
    assert status == 200
    assert isinstance(completed_body, dict)
    if ended == "with a summary":
        assert completed_body["answer"] == "before the crash"
    else:
        assert (completed_body["ok"], completed_body["error"]) == (False, "run_lost")


async def test_a_callback_of_a_run_that_ended_before_the_takeover_is_sent(tmp_path: Path) -> None:
    async with receiver() as there:
        row = {"callback_url": there.url, "allow_private_callback_hosts": True}
        async with webhook_rig(tmp_path, row) as rig:
            _, first = await rig.post(HELLO, key="k")
            rig.router.admissions[str(first["run_id"])] = "completed"

            async def has_it(request: RunRequest) -> SubmitResult:
                return SubmitResult("accepted", request.run_id, duplicate=True)

            rig.router.script = has_it
            await rig.change_record(state="pending")
            await rig.clock.advance(LEASE_MS)
            assert (await rig.post(HELLO, key="k"))[0] == 202
            await there.got(1)
    assert there.bodies[0]["run_id"] == first["run_id"]


async def test_a_changed_configuration_does_not_lose_a_run_that_was_taken(tmp_path: Path) -> None:
    """The router knows the id with another policy, say: a repeat must not become a second run."""
    async with webhook_rig(tmp_path) as rig:
        first = await rig.post(HELLO, key="k")
        await rig.change_record(state="pending")
        await rig.clock.advance(LEASE_MS)

        async def conflict(request: RunRequest) -> SubmitResult:
            return SubmitResult("rejected", request.run_id, "run_id_conflict")

        rig.router.script = conflict
        assert await rig.post(HELLO, key="k") == first


@pytest.mark.behaviour("lemon_gateway.28")
@pytest.mark.parametrize("found", ["completed", "submitted", "gone"])
async def test_the_loser_of_a_takeover_answers_from_what_is_stored(
    found: str, tmp_path: Path
) -> None:
    """A first request is slower than its lease; a second one has finished when it comes back."""
    async with webhook_rig(tmp_path) as rig:
        stored = {"run_id": "run_of_the_winner", "status": "accepted"}

        async def overtaken(request: RunRequest) -> SubmitResult:
            record = await rig.record()
            assert record is not None
            receipt = {"response_status": 202, "response_payload": stored}
            if found == "gone":
                await rig.forget()
            else:
                await rig.change_record(state=found, lease_owner="another", receipt=receipt)
            return SubmitResult("accepted", request.run_id)

        rig.router.script = overtaken
        status, body = await rig.post(HELLO, key="k")
        run_id = rig.router.requests[0].run_id
        if found == "completed":
            assert (status, body) == (202, stored)
        elif found == "submitted":
            assert (status, body) == (202, {"run_id": run_id, "status": "accepted"})
        else:
            assert (status, body) == (503, {"error": NO_RECEIPT, "run_id": run_id})


@pytest.mark.behaviour("lemon_gateway.28")
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("call", ["load", "compare_and_swap"])
@pytest.mark.parametrize("left", range(5))
async def test_no_success_leaves_without_its_receipt(
    left: int, call: str, mode: str, tmp_path: Path
) -> None:
    """The store fails from each of its calls on: the first of them, the second, and so on."""
    async with webhook_rig(tmp_path, {"mode": mode}) as rig:
        rig.router.script = rig.router.completes
        rig.broken.left[call] = left
        status, body = await rig.post(HELLO, key="k")
        del rig.broken.left[call]
        record = await rig.record()
        if status == 503:
            assert body["error"] == NO_RECEIPT
            submitted = [request.run_id for request in rig.router.requests]
            assert [body["run_id"]] == submitted if submitted else "run_id" not in body
            assert record is None or record["state"] != "completed"
        else:
            assert left >= (2 if mode == "async" else 3)
            assert record is not None
            assert record["state"] == "completed"


@pytest.mark.behaviour("lemon_gateway.28")
async def test_a_repeat_during_an_outage_of_the_store_never_gets_a_success(tmp_path: Path) -> None:
    async with webhook_rig(tmp_path) as rig:
        first = await rig.post(HELLO, key="k")
        rig.broken.left = {"load": 0, "compare_and_swap": 0}
        for _ in range(3):
            assert await rig.post(HELLO, key="k") == (503, {"error": NO_RECEIPT})
        rig.broken.left = {}
        assert await rig.post(HELLO, key="k") == first
        assert len(rig.router.requests) == 1


@pytest.mark.behaviour("lemon_gateway.28")
@pytest.mark.parametrize("status", ["rejected", "unavailable"])
async def test_a_definite_refusal_lets_a_repeat_try_again(status: str, tmp_path: Path) -> None:
    async with webhook_rig(tmp_path) as rig:

        async def refused(request: RunRequest) -> SubmitResult:
            return SubmitResult(status, request.run_id)  # type: ignore[arg-type]  # a literal

        rig.router.script = refused
        assert (await rig.post(HELLO, key="k"))[0] in (500, 503)
        assert await rig.record() is None
        rig.router.script = None
        assert (await rig.post(HELLO, key="k"))[0] == 202
        assert len(rig.router.requests) == 2


@pytest.mark.behaviour("lemon_gateway.106")
@pytest.mark.parametrize("status", ["rejected", "unavailable"])
async def test_a_refusal_after_a_takeover_keeps_the_run_id(status: str, tmp_path: Path) -> None:
    """Whoever was killed may have submitted it; a router that is not up yet knows nothing of it."""
    async with webhook_rig(tmp_path) as rig:
        first = await rig.post(HELLO, key="k")
        await rig.change_record(state="pending")
        await rig.clock.advance(LEASE_MS)

        async def refused(request: RunRequest) -> SubmitResult:
            return SubmitResult(status, request.run_id)  # type: ignore[arg-type]  # a literal

        rig.router.script = refused
        assert (await rig.post(HELLO, key="k"))[0] in (500, 503)
        rig.router.script = None
        assert await rig.post(HELLO, key="k") == first
        assert {request.run_id for request in rig.router.requests} == {first[1]["run_id"]}


@pytest.mark.behaviour("lemon_gateway.28")
async def test_records_of_ended_requests_go_after_two_days_and_unknown_ones_stay(
    tmp_path: Path,
) -> None:
    async with webhook_rig(tmp_path) as rig:
        sweeper = Idempotency(rig.store, rig.clock)
        await rig.post(HELLO, key="k")
        rig.clock.set_wall(rig.clock.now_ms() + RETENTION_MS + 1)
        assert await sweeper.sweep() == 1
        for changes in ({"state": "outcome_unknown"}, {"state": "pending", "run_id": None}):
            await rig.post(HELLO, key="k")
            await rig.change_record(**changes)
            rig.clock.set_wall(rig.clock.now_ms() + RETENTION_MS + 1)
            assert await sweeper.sweep() == 0
            await rig.forget()


@pytest.mark.behaviour("lemon_gateway.106")
async def test_a_key_that_comes_with_another_payload_is_refused(tmp_path: Path) -> None:
    async with webhook_rig(tmp_path) as rig:
        first = await rig.post(HELLO, key="k")
        other = (422, {"error": "idempotency key was used with another payload"})
        assert await rig.post({"prompt": "something else"}, key="k") == other
        assert await rig.post({**HELLO, "metadata": {"n": 1}}, key="k") == other
        # Space and the order of keys are no other payload.
        assert await rig.post(b' {"x": 1,  "prompt": "hello"}', key="k") == first
        assert len(rig.router.requests) == 1


@pytest.mark.behaviour("lemon_gateway.29")
@pytest.mark.parametrize("value", ["", "  ", 7, [], {}, None, True])
@pytest.mark.parametrize("name", ["idempotency_key", "idempotencyKey", "idempotency.key"])
async def test_a_payload_key_that_is_none_is_refused_before_anything_is_stored(
    name: str, value: object, tmp_path: Path
) -> None:
    async with webhook_rig(tmp_path, {"allow_payload_idempotency_key": True}) as rig:
        assert await rig.post({**HELLO, name: value}) == BAD_KEY
        assert await rig.record() is None
        assert rig.router.requests == []


@pytest.mark.behaviour("lemon_gateway.29")
async def test_payload_keys_count_only_where_they_are_allowed(tmp_path: Path) -> None:
    forms: list[dict[str, object]] = [
        {"idempotency_key": "k"},
        {"idempotencyKey": "k"},
        {"idempotency": {"key": "k"}},
    ]
    async with webhook_rig(tmp_path / "no") as rig:
        for value in ("k", "", 7):
            assert (await rig.post({**HELLO, "idempotency_key": value}))[0] == 202
        assert await rig.record() is None
    async with webhook_rig(tmp_path / "yes", {"allow_payload_idempotency_key": True}) as rig:
        answers = [await rig.post({**HELLO, **form}) for form in forms]
        assert answers == [answers[0]] * 3
        assert await rig.post(HELLO, key="k") == answers[0]
        assert len(rig.router.requests) == 1
        # A header goes first; a blank one is none.
        await rig.post({**HELLO, "idempotency_key": "k"}, key="other")
        assert len(rig.router.requests) == 2
        assert await rig.post({**HELLO, "idempotency_key": "k"}, key="  ") == answers[0]


@pytest.mark.behaviour("lemon_gateway.29")
async def test_a_key_over_512_bytes_is_refused(tmp_path: Path) -> None:
    async with webhook_rig(tmp_path, {"allow_payload_idempotency_key": True}) as rig:
        assert await rig.post({**HELLO, "idempotency_key": "ü" * 257}) == BAD_KEY
        assert await rig.post(HELLO, key="k" * 513) == BAD_KEY
        assert (await rig.post({**HELLO, "idempotency_key": "ü" * 256}))[0] == 202


@pytest.mark.behaviour("lemon_gateway.30")
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_an_unknown_outcome_is_one_receipt_for_ever(mode: str, tmp_path: Path) -> None:
    async with webhook_rig(tmp_path, {"mode": mode}) as rig:

        async def lost(request: RunRequest) -> SubmitResult:
            return SubmitResult("outcome_unknown", request.run_id, "no answer")

        rig.router.script = lost
        first = await rig.post(HELLO, key="k")
        assert first == (
            200,
            {**known(rig, mode), "status": "outcome_unknown", "retry_safe": False},
        )
        rig.router.script = None
        await rig.clock.advance(10 * LEASE_MS)
        assert await rig.post(HELLO, key="k") == first
        assert len(rig.router.requests) == 1


@pytest.mark.behaviour("lemon_gateway.30")
async def test_an_old_record_without_a_run_is_unknown_for_ever(tmp_path: Path) -> None:
    async with webhook_rig(tmp_path) as rig:
        await rig.post(HELLO, key="k")
        await rig.change_record(
            state="pending", run_id=None, receipt=None, lease_owner=None, lease_expires_at_ms=None
        )
        told = (
            200,
            {"status": "legacy_outcome_unknown", "duplicate": True, "retry_safe": False},
        )
        for _ in range(2):
            await rig.clock.advance(10 * LEASE_MS)
            assert await rig.post(HELLO, key="k") == told
        assert len(rig.router.requests) == 1
