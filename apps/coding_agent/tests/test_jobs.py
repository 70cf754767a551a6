"""Commands in the background (specification coding_agent 7, 11.15; design ruling 35)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from coding_agent import jobs as jobs_module
from coding_agent.services import services
from coding_agent.tests.harness import call, details, lives, pids_in, tool_env
from coding_agent.tests.scene import SESSION_KEY, scene, tool_turn
from coding_agent.tools import shell
from coding_agent.tools.jobs import JOBS
from coding_agent.tools.shell import bash_tool
from coding_agent.tools.toolset import ToolEnv
from lemon_agent import ToolError
from lemon_ai.testing import Turn
from lemon_core.bus import SYSTEM_TOPIC
from lemon_core.system_events import SessionReset

pytestmark = pytest.mark.anyio

BASH = bash_tool(60_000)


@asynccontextmanager
async def runtime(folder: Path) -> AsyncIterator[ToolEnv]:
    """The tools while a runtime is up."""
    env = tool_env(folder)
    with anyio.fail_after(20):
        async with env.shared.jobs.running():
            yield env


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of first output would only be waited for here."""
    monkeypatch.setattr(shell, "FIRST_OUTPUT_S", 0.05)


async def written(fifo: Path) -> None:
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(fifo.read_text)


async def read_until(env: ToolEnv, text: str, *, offset: int) -> None:
    """Read again until the job's output, which is on its way, is there."""
    with anyio.fail_after(5):
        while (
            text not in (await call(JOBS, env, action="read", job_id="job_1", offset=offset)).text
        ):
            pass


@pytest.mark.behaviour("coding_agent.15")
async def test_a_job_outlives_its_call_and_is_read_and_killed_with_its_children(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "ready")
    os.mkfifo(tmp_path / "go")
    command = (
        "sleep 300 & echo $$ $! > pid; echo first; read x < go; echo second; echo > ready; wait"
    )
    async with runtime(tmp_path) as env:
        started = await call(BASH, env, command=command, background=True)
        assert started.text.startswith("job_1 runs. Read on with jobs.")
        assert details(started) == {"job_id": "job_1", "state": "running", "exit_code": None}
        await anyio.to_thread.run_sync((tmp_path / "go").write_text, "\n")
        await written(tmp_path / "ready")
        await read_until(env, "second", offset=0)
        listed = await call(JOBS, env, action="list")
        assert listed.text == f"job_1 running, 0 s old: {command[:100]}"
        whole = await call(JOBS, env, action="read", job_id="job_1", offset=0)
        assert whole.text.startswith("job_1 running\nfirst\nsecond\n")
        await call(JOBS, env, action="read", job_id="job_1")
        again = await call(JOBS, env, action="read", job_id="job_1")
        assert again.text == "job_1 running\n(no new output)"
        killed = await call(JOBS, env, action="kill", job_id="job_1")
        assert details(killed)["state"] == "killed"
        assert not any(map(lives, pids_in(tmp_path / "pid")))


async def test_the_end_of_a_job_is_told_at_once_or_later(tmp_path: Path) -> None:
    async with runtime(tmp_path) as env:
        jobs = env.shared.jobs
        await call(BASH, env, command="echo out; exit 3", background=True)
        with anyio.fail_after(5):
            await jobs.get("sess_1", "job_1").ended.wait()
        assert (await call(JOBS, env, action="list")).text.startswith("job_1 exited with code 3")
        env = replace(env, shell=replace(env.shell, path="/nonexistent"))
        with pytest.raises(ToolError, match=r"the job could not run: .*nonexistent"):
            await call(BASH, env, command="x", background=True)


@pytest.mark.behaviour("coding_agent.15")
async def test_a_job_belongs_to_its_conversation_alone(tmp_path: Path) -> None:
    async with runtime(tmp_path) as env:
        await call(BASH, env, command="exec sleep 300", background=True)
        other = replace(env, identity=replace(env.identity, session_id="sess_2"))
        assert (await call(JOBS, other, action="list")).text == "No jobs."
        for action in ("read", "kill"):
            with pytest.raises(ToolError, match=r"has no job 'job_1' \(it has: none\)"):
                await call(JOBS, other, action=action, job_id="job_1")
            with pytest.raises(ToolError, match=f"{action} needs job_id"):
                await call(JOBS, env, action=action)
        assert env.shared.jobs.get("sess_1", "job_1").state == "running"
        await env.shared.jobs.end_session("agent:default:main")
        assert (await call(JOBS, env, action="list")).text == "No jobs."


@pytest.mark.behaviour("coding_agent.15")
async def test_jobs_end_with_the_runtime(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    async with runtime(tmp_path) as env:
        command = "sleep 300 & echo $$ $! > pid; echo > ready; wait"
        await call(BASH, env, command=command, background=True)
        await written(tmp_path / "ready")
    assert not any(map(lives, pids_in(tmp_path / "pid")))
    with pytest.raises(ToolError, match="shutting down"):
        await call(BASH, env, command="true", background=True)


async def test_jobs_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MAX_FINISHED_PER_SESSION", 1)
    monkeypatch.setattr(jobs_module, "MAX_RUNNING_PER_SESSION", 2)
    async with runtime(tmp_path) as env:
        jobs = env.shared.jobs
        for _ in range(2):
            await call(BASH, env, command="exec sleep 300", background=True)
        with pytest.raises(ToolError, match=r"2 jobs run already(?s:.)*job_2: exec sleep"):
            await call(BASH, env, command="true", background=True)
        monkeypatch.setattr(jobs_module, "MAX_RUNNING", 2)
        other = replace(env, identity=replace(env.identity, session_id="sess_2"))
        with pytest.raises(ToolError, match="2 jobs run on this machine"):
            await call(BASH, other, command="true", background=True)
        for job_id in ("job_1", "job_2"):
            await call(JOBS, env, action="kill", job_id=job_id)
        assert [job.id for job in jobs.of("sess_1")] == ["job_2"]


@pytest.mark.behaviour("coding_agent.103")
async def test_a_job_that_never_stops_printing_takes_bounded_memory_and_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coding_agent.tools.output.MAX_SPILL_BYTES", 600_000)
    os.mkfifo(tmp_path / "ready")
    async with runtime(tmp_path) as env:
        command = "head -c 5000000 /dev/zero | tr '\\0' x; echo > ready; exec sleep 300"
        await call(BASH, env, command=command, background=True)
        await written(tmp_path / "ready")
        await read_until(env, "[Bytes 599999-600000.]", offset=599_999)
        result = await call(JOBS, env, action="read", job_id="job_1")
        assert len(result.text) < 51_000
        await call(JOBS, env, action="kill", job_id="job_1")
        (path,) = (env.spill_dir / "bash").iterdir()
        assert path.stat().st_size == 600_000


@pytest.mark.behaviour("coding_agent.15")
async def test_a_later_run_of_the_conversation_finds_the_job(tmp_path: Path) -> None:
    """It outlives the run that began it, and ends with the runtime."""
    command = "sleep 300 & echo $$ $! > pid; echo begun; wait"
    turns = [
        tool_turn("bash", command=command, background=True),
        Turn(text="ok"),
        tool_turn("jobs", action="list"),
        Turn(text="ok"),
        tool_turn("jobs", action="list"),
        Turn(text="ok"),
    ]
    async with scene(tmp_path, *turns) as here:
        first = await here.run()
        jobs = here.runtime.service(services).shared_tools.jobs
        (job,) = jobs.of(here.session_files[0].stem)
        assert job.state == "running"
        await here.run("go on", resume=first.completed.resume)
        assert f"job_1 running, 0 s old: {command}" in [text for _, text in here.shown()]
        await here.run("somebody else")
        assert [text for role, text in here.shown() if role == "tool"] == ["No jobs."]
        with anyio.fail_after(5):
            while not (here.cwd / "pid").exists() or len(pids_in(here.cwd / "pid")) < 2:
                await anyio.lowlevel.checkpoint()
    assert str(job.state) == "killed"
    assert not any(map(lives, pids_in(tmp_path / "work" / "pid")))


@pytest.mark.behaviour("coding_agent.15")
async def test_a_session_that_is_started_over_ends_its_jobs(tmp_path: Path) -> None:
    """With their children; those of other sessions go on."""
    command = "sleep 300 & echo $$ $! > pid; echo > ready; wait"
    turns = [tool_turn("bash", command=command, background=True), Turn(text="ok")]
    async with scene(tmp_path, *turns) as here:
        os.mkfifo(here.cwd / "ready")
        await here.run()
        await written(here.cwd / "ready")
        (job,) = here.runtime.service(services).shared_tools.jobs.of(here.session_files[0].stem)
        for session_key in ("agent:default:main:sub:other", SESSION_KEY):
            assert job.state == "running"
            payload = SessionReset(session_key=session_key)
            here.runtime.bus.publish_event(SYSTEM_TOPIC, "session_reset", payload)
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await job.ended.wait()
        assert str(job.state) == "killed"
        assert not any(map(lives, pids_in(here.cwd / "pid")))
