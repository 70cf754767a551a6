"""Messages to a busy session, from several terminals, and the commands about work."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from tools.e2e.tests.stack import LEMON, Home, Program, model_server, scripted, user

pytestmark = pytest.mark.anyio

HELD = {"text": ["begun\n", "ended"], "gate": "held", "gate_after": 1}


@asynccontextmanager
async def busy(*turns: dict[str, object]) -> AsyncIterator[tuple[Home, Program, str]]:
    """A user with a server, whose session `w` answers until the gate opens; the model's address."""
    async with user() as home:
        script = {"turns": [HELD, *turns]}
        async with model_server(script, home.paths.home) as base_url:
            me = scripted(home, base_url)
            async with me.server(), me.start(LEMON, "run", "--session", "w", "first") as first:
                await first.wait_for("begun")
                yield me, first, base_url


async def open_gate(base_url: str) -> None:
    import aiohttp  # the fake server's control interface

    url = base_url.removesuffix("/v1") + "/control/gates/held"
    async with aiohttp.ClientSession() as http, http.post(url) as answer:
        assert answer.status == 200


async def runs(me: Home, *options: str) -> list[dict[str, object]]:
    ended = await me.lemon("runs", "list", "--json", *options)
    assert ended.code == 0
    found: list[dict[str, object]] = json.loads(ended.out)["runs"]
    return found


@pytest.mark.behaviour("lemon_cli.101")
async def test_collect_waits_its_turn_and_says_so() -> None:
    async with (
        busy({"text": "Second."}) as (me, first, base_url),
        me.start(LEMON, "run", "--session", "w", "second") as second,
    ):
        line = await second.wait_for("queued")
        (active,) = [run for run in await runs(me, "--active") if run["prompt"] == "first"]
        assert line == f"lemon: queued: next, after {active['run_id']}"
        await open_gate(base_url)
        assert (await first.wait()).code == 0
        ended = await second.wait()
        assert (ended.code, ended.out) == (0, "Second.")


@pytest.mark.behaviour("lemon_cli.101")
async def test_an_interrupt_ends_the_run_and_is_next() -> None:
    async with busy({"text": "Instead."}) as (me, first, _):
        mode = ("--queue-mode", "interrupt")
        ended = await me.lemon("run", "--session", "w", *mode, "rather this")
        assert (ended.code, ended.out) == (0, "Instead.")
        assert "is interrupted: this is next" in ended.err
        told = await first.wait()
        assert told.code == 1
        assert "lemon: the run was interrupted by a newer message" in told.err


@pytest.mark.behaviour("lemon_cli.101")
@pytest.mark.parametrize("mode", ["steer", "steer_backlog", "redirect"])
async def test_a_steer_becomes_part_of_the_run_whose_answer_follows(mode: str) -> None:
    async with busy({"text": "Steered."}) as (me, first, base_url):
        steer = me.start(LEMON, "run", "--session", "w", "--queue-mode", mode, "and this")
        async with steer as second:
            assert "offered to run_" in await second.wait_for("offered")
            await open_gate(base_url)
            ended = await second.wait()
            answered = await first.wait()
            assert (answered.code, ended.code) == (0, 0)
            assert ended.out.endswith("Steered.")
            texts = [run["prompt"] for run in await runs(me)]
            assert texts == ["and this", "first"]


@pytest.mark.behaviour("lemon_cli.101")
async def test_follow_ups_in_a_row_are_one_run() -> None:
    async with busy({"text": "Both."}) as (me, first, base_url):
        follow = ("run", "--session", "w", "--queue-mode", "followup")
        async with (
            me.start(LEMON, *follow, "one") as one,
            me.start(LEMON, *follow, "two") as two,
        ):
            # Which of them is there first is not known: it is queued, and the other one merged.
            await one.wait_for("lemon:")
            await two.wait_for("lemon:")
            await open_gate(base_url)
            outs = {(await one.wait()).out, (await two.wait()).out}
            await first.wait()
            # Started at once they come within the window, but a slow machine may miss it.
            states = {str(run["prompt"]): run["state"] for run in await runs(me)}
            if "absorbed" in states.values():
                assert outs == {"Both."}


@pytest.mark.behaviour("lemon_cli.27")
async def test_sessions_and_runs_are_seen_and_changed_from_another_terminal() -> None:
    async with busy({"text": "Second."}) as (me, first, _):
        async with me.start(LEMON, "run", "--session", "w", "second") as second:
            await second.wait_for("queued")
            waiting, active = await runs(me, "--active")
            assert (waiting["state"], active["prompt"]) == ("queued", "first")
            listed = await me.lemon("sessions", "list")
            line = listed.out.splitlines()[1]
            assert line.split()[:5] == ["w", "default", "running,", "1", "queued"]
            shown = await me.lemon("runs", "show", str(active["run_id"]))
            assert shown.out.splitlines()[2] == "state    streaming"
            dropped = await me.lemon("runs", "abort", str(waiting["run_id"]))
            assert (dropped.code, dropped.err) == (0, f"lemon: {waiting['run_id']} is dropped")
            ended = await second.wait()
            assert (ended.code, ended.err.splitlines()[-1]) == (1, "lemon: the run was aborted")
            steered = await me.lemon("runs", "steer", str(active["run_id"]), "be brief")
            assert (steered.code, steered.out) == (0, "")
            late = await me.lemon("runs", "steer", str(waiting["run_id"]), "too late")
            assert late.code == 1
        chosen = await me.lemon("sessions", "set", "w", "--model", "openai:fake", "--json")
        assert json.loads(chosen.out)["model"] == "openai:fake"
        assert (await me.lemon("sessions", "reset", "w")).code == 1  # nobody can be asked here
        reset = await me.lemon("sessions", "reset", "w", "--yes")
        assert (reset.code, reset.err) == (0, "lemon: session w starts over")
        assert "its session starts over" in (await first.wait()).err
        assert (await me.lemon("sessions", "show", "w")).code == 1
        assert json.loads((await me.lemon("sessions", "list", "--json")).out) == {"sessions": []}


@pytest.mark.behaviour("lemon_router.46")
async def test_queued_work_runs_after_a_restart() -> None:
    async with user() as home:
        script = {"turns": [HELD, {"text": "After."}]}
        async with model_server(script, home.paths.home) as base_url:
            me = scripted(home, base_url)
            async with (
                me.server() as server,
                me.start(LEMON, "run", "--session", "w", "first") as first,
            ):
                await first.wait_for("begun")
                left = await me.lemon("run", "--detach", "--session", "w", "second")
                assert (left.code, left.err[:20]) == (0, "lemon: queued: next,")
                (queued,) = await runs(me, "--status", "queued")
                assert left.out == queued["run_id"]
                server.signal(signal.SIGTERM)
                assert "gateway_shutdown" in (await first.wait()).err
                assert (await server.wait()).code == 0
            async with me.server():
                with anyio.fail_after(60):
                    while True:
                        shown = await me.lemon("runs", "show", str(queued["run_id"]), "--json")
                        run = json.loads(shown.out)
                        if run["completion"] is not None:
                            break
                assert (run["state"], run["completion"]["answer"]) == ("completed", "After.")
