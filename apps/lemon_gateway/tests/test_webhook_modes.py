"""How a webhook answers, and callbacks: specification lemon_gateway 6.1 and 6.2."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from lemon_core.bridges import SubmitResult
from lemon_core.runs import RunRequest
from lemon_gateway.tests.webhook_rig import receiver, webhook_rig

pytestmark = pytest.mark.anyio

HELLO = {"prompt": "hello", "metadata": {"n": 1}, "urls": ["https://x.example/a"]}
SYNC = {"mode": "sync"}
PRIVATE = {"allow_private_callback_hosts": True}


@pytest.mark.behaviour("lemon_gateway.27")
async def test_a_sync_request_is_answered_with_the_end_of_its_run(tmp_path: Path) -> None:
    """Its subscription is there before the run is: this one ends while it is submitted."""
    async with webhook_rig(tmp_path, SYNC) as rig:
        rig.router.script = rig.router.completes
        status, body = await rig.post(HELLO)
    (request,) = rig.router.requests
    assert status == 200
    assert body == {
        "run_id": request.run_id,
        "session_key": "agent:default:main",
        "mode": "sync",
        "completed": {
            "ok": True,
            "answer": "done",
            "engine": "lemon",
            "run_id": request.run_id,
            "session_key": "agent:x:main",
        },
        "duration_ms": 0,
    }


async def test_a_sync_request_follows_the_run_that_absorbs_its_own(tmp_path: Path) -> None:
    async with webhook_rig(tmp_path, SYNC) as rig:

        async def merged(request: RunRequest) -> SubmitResult:
            assert request.run_id is not None
            rig.router.absorbs(request.run_id, "run_other")
            rig.router.ends("run_other", "for both")
            return SubmitResult("accepted", request.run_id)

        rig.router.script = merged
        status, body = await rig.post(HELLO)
    assert status == 200
    assert isinstance(body["completed"], dict)
    assert body["completed"]["answer"] == "for both"


@pytest.mark.behaviour("lemon_gateway.27")
async def test_a_sync_request_that_takes_too_long_is_500_with_its_run(tmp_path: Path) -> None:
    async with webhook_rig(tmp_path, {**SYNC, "timeout_ms": 20}) as rig:
        answer = await rig.post(HELLO)
        (request,) = rig.router.requests
        assert answer == (500, {"error": "run timed out", "run_id": request.run_id})


@pytest.mark.behaviour("lemon_gateway.27")
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, {"status": "sent", "http_status": 200}),
        (500, {"status": "failed", "error": "http status 500"}),
    ],
)
async def test_a_sync_request_tells_of_its_one_callback(
    status: int, expected: dict[str, object], tmp_path: Path
) -> None:
    async with receiver() as there:
        there.statuses = [status]
        row = {**SYNC, **PRIVATE, "callback_url": there.url}
        async with webhook_rig(tmp_path, row) as rig:
            rig.router.script = rig.router.completes
            _, body = await rig.post(HELLO)
    assert body["callback"] == expected
    assert len(there.bodies) == 1


@pytest.mark.behaviour("lemon_gateway.27")
async def test_an_async_callback_is_tried_with_growing_pauses_until_it_is_taken(
    tmp_path: Path,
) -> None:
    async with receiver() as there:
        there.statuses = [500, 302, 201]
        row = {
            **PRIVATE,
            "callback_url": there.url,
            "callback_backoff_ms": 500,
            "callback_backoff_max_ms": 700,
        }
        async with webhook_rig(tmp_path, row) as rig:
            status, body = await rig.post(HELLO)
            (request,) = rig.router.requests
            run_id = request.run_id
            assert (status, body["callback"]) == (202, {"status": "scheduled", "url": there.url})
            assert run_id is not None
            await rig.clock.advance(7)
            rig.router.ends(run_id)
            for count, pause_ms in [(1, 500), (2, 700)]:
                await there.got(count)
                with anyio.fail_after(5):
                    await rig.clock.wait_for_sleepers()
                await rig.clock.advance(pause_ms - 1)
                assert rig.clock.sleepers
                await rig.clock.advance(1)
            await there.got(3)
    assert there.bodies == [there.bodies[0]] * 3
    assert there.bodies[0] == {
        "integration_id": "ci",
        "run_id": run_id,
        "session_key": "agent:default:main",
        "completed": {
            "ok": True,
            "answer": "done",
            "engine": "lemon",
            "run_id": run_id,
            "session_key": "agent:x:main",
        },
        "duration_ms": 7,
        "metadata": {"n": 1},
        "attachments": [{"url": "https://x.example/a", "name": "a"}],
    }


@pytest.mark.behaviour("lemon_gateway.27")
async def test_a_callback_that_is_never_taken_is_given_up(tmp_path: Path) -> None:
    async with receiver() as there:
        there.statuses = [500] * 9
        row = {**PRIVATE, "callback_url": there.url, "callback_backoff_ms": 0}
        async with webhook_rig(tmp_path, {**row, "callback_max_attempts": 2}) as rig:
            await rig.post(HELLO)
            run_id = rig.router.requests[0].run_id
            assert run_id is not None
            rig.router.ends(run_id)
            await there.got(2)
            # Another one comes after it: of the first there are no more.
            there.statuses = [200]
            await rig.post(HELLO)
            second = rig.router.requests[1].run_id
            assert second is not None
            rig.router.ends(second)
            await there.got(3)
    assert [body["run_id"] for body in there.bodies] == [run_id, run_id, second]


@pytest.mark.behaviour("lemon_gateway.27")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",
        "http://[::1]/x",
        "http://localhost./x",
        "http://LOCALHOST/x",
        "http://[::ffff:10.0.0.1]/x",
        "http://2130706433/x",
        "http://0x7f.1/x",
        "http://\uff11\uff12\uff17.0.0.1/x",
        "http://inside.example/x",
        "http://both.example/x",
        "http://absent.example/x",
        "http://user@public.example/x",
        "ftp://public.example/x",
        "//public.example/x",
    ],
)
async def test_a_callback_to_a_place_that_is_not_public_is_refused(
    url: str, tmp_path: Path
) -> None:
    names = {
        "inside.example": ["10.0.0.1"],
        "both.example": ["93.184.216.34", "::ffff:192.168.0.1"],
        "public.example": ["93.184.216.34"],
    }

    async def lookup(host: str, port: int) -> Sequence[str]:
        if host not in names:
            raise OSError(f"no such name: {host}")
        return names[host]

    row = {"allow_callback_override": True}
    async with webhook_rig(tmp_path, row, lookup=lookup) as rig:
        refused = (422, {"error": "invalid callback url"})
        assert await rig.post({**HELLO, "callback_url": url}) == refused
        assert rig.router.requests == []
        for key in ("callback_url", "callbackUrl", "callback.url"):
            taken = await rig.post({**HELLO, key: "http://Public.Example./x"})
            assert taken[0] == 202


@pytest.mark.behaviour("lemon_gateway.27")
async def test_a_name_that_turns_inside_before_the_delivery_is_not_called(tmp_path: Path) -> None:
    async with receiver() as there:
        answers = [["93.184.216.34"], ["127.0.0.1"]]

        async def lookup(host: str, port: int) -> Sequence[str]:
            return answers.pop(0)

        row = {**SYNC, "callback_url": f"http://turns.example:{there.port}/hook"}
        async with webhook_rig(tmp_path, row, lookup=lookup) as rig:
            rig.router.script = rig.router.completes
            _, body = await rig.post(HELLO)
    assert there.bodies == []
    assert answers == []
    assert body["callback"] == {
        "status": "failed",
        "error": "turns.example is, or leads to, an address that is not public: not asked",
    }


@pytest.mark.behaviour("lemon_gateway.27")
async def test_a_callback_goes_to_the_address_that_was_checked_and_follows_no_redirect(
    tmp_path: Path,
) -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        assert host == "checked.example"
        return ["127.0.0.1"]

    async with receiver() as inside, receiver() as there:
        there.redirect_to = inside.url
        row = {**SYNC, **PRIVATE, "callback_url": f"http://checked.example:{there.port}/hook"}
        async with webhook_rig(tmp_path, row, lookup=lookup) as rig:
            rig.router.script = rig.router.completes
            _, body = await rig.post(HELLO)
    assert body["callback"] == {"status": "failed", "error": "http status 307"}
    assert there.hosts == [f"checked.example:{there.port}"]
    assert inside.bodies == []


async def test_the_secret_in_a_callback_address_is_told_to_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither to the sender, nor to the log, nor to what is stored for a repeat."""
    garbage = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"hunter2 is no HTTP\r\n\r\n")

    async def lookup(host: str, port: int) -> Sequence[str]:
        return [host] if host == "127.0.0.1" else []

    caplog.set_level(logging.INFO)
    async with garbage, anyio.create_task_group() as tasks:
        tasks.start_soon(garbage.serve, answer)
        port = garbage.extra(anyio.abc.SocketAttribute.local_port)
        url = f"http://127.0.0.1:{port}/hook?sig=hunter2"
        row: dict[str, object] = {**PRIVATE, "callback_url": url, "allow_callback_override": True}
        row["callback_max_attempts"] = 1
        async with webhook_rig(tmp_path, row, lookup=lookup) as rig:
            _, taken = await rig.post(HELLO, key="k")
            assert taken["callback"] == {
                "status": "scheduled",
                "url": f"http://127.0.0.1:{port}/hook",
            }
            assert "hunter2" not in json.dumps(await rig.record(), default=str)
            run_id = rig.router.requests[0].run_id
            assert run_id is not None
            rig.router.ends(run_id)
            with anyio.fail_after(5):
                while "webhook.callback_failed" not in caplog.text:
                    await anyio.lowlevel.checkpoint()
            for bad in ("ftp://me:hunter2@x.example/", "http://absent.invalid/?t=hunter2"):
                status, _ = await rig.post({**HELLO, "callback_url": bad})
                assert status == 422
        tasks.cancel_scope.cancel()
    assert caplog.text.count("webhook.callback_refused") == 2
    assert "hunter2" not in caplog.text + str([vars(one) for one in caplog.records])


async def test_a_callback_of_the_payload_is_ignored_without_the_right_to_give_one(
    tmp_path: Path,
) -> None:
    async with webhook_rig(tmp_path) as rig:
        status, body = await rig.post({**HELLO, "callback_url": "http://127.0.0.1/"})
    assert status == 202
    assert "callback" not in body


@pytest.mark.parametrize("status", ["unavailable", "rejected"])
async def test_a_message_that_is_not_taken_has_no_callback(status: str, tmp_path: Path) -> None:
    async with receiver() as there:
        row = {**PRIVATE, "callback_url": there.url}
        async with webhook_rig(tmp_path, row) as rig:

            async def refused(request: RunRequest) -> SubmitResult:
                return SubmitResult(status, request.run_id)  # type: ignore[arg-type]  # a literal

            rig.router.script = refused
            await rig.post(HELLO)
            first = rig.router.requests[0].run_id
            assert first is not None
            assert not rig.router.bus.has_subscribers(f"run:{first}")
    assert there.bodies == []


async def test_a_request_whose_callback_nobody_can_wait_for_is_not_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specification lemon_gateway 6.2: a waiter that is not ready fails the request."""
    monkeypatch.setattr("lemon_gateway.webhook.waiting.MAX_WAITING", 0)
    row = {**PRIVATE, "callback_url": "http://127.0.0.1:1/"}
    async with webhook_rig(tmp_path, row) as rig:
        refused = (500, {"error": "internal server error"})
        assert await rig.post(HELLO, key="k") == refused
        assert rig.router.requests == []
        assert await rig.record() is None


@pytest.mark.behaviour("lemon_gateway.30")
async def test_a_callback_still_comes_when_nobody_knows_whether_the_message_was_taken(
    tmp_path: Path,
) -> None:
    async with receiver() as there:
        row = {**PRIVATE, "callback_url": there.url}
        async with webhook_rig(tmp_path, row) as rig:

            async def lost(request: RunRequest) -> SubmitResult:
                return SubmitResult("outcome_unknown", request.run_id)

            rig.router.script = lost
            status, body = await rig.post(HELLO)
            run_id = rig.router.requests[0].run_id
            assert run_id is not None
            assert (status, body) == (
                200,
                {
                    "run_id": run_id,
                    "session_key": "agent:default:main",
                    "mode": "async",
                    "status": "outcome_unknown",
                    "retry_safe": False,
                },
            )
            rig.router.ends(run_id)
            await there.got(1)
