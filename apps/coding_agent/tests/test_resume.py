"""Continuing a conversation, and what is on disk when (specification coding_agent 1 and 11.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from coding_agent.tests.scene import (
    scene,
    stored,
    tool_turn,
)
from lemon_ai.testing import Turn
from lemon_core.resume import ResumeToken
from lemon_gateway.requests import EngineAction, EngineCompleted, EngineDelta, SinkMessage

pytestmark = pytest.mark.anyio


def torn(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"type":"message","id":"00')


def corrupt(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[1] = b"{nonsense"
    path.write_bytes(b"\n".join(lines))


@pytest.mark.behaviour("coding_agent.5")
@pytest.mark.parametrize(
    ("damage", "reason"),
    [(Path.unlink, "missing"), (corrupt, "corrupt"), (lambda p: p.write_text(""), "invalid")],
)
async def test_only_an_automatic_resume_falls_back_to_a_fresh_session(
    tmp_path: Path, damage: Callable[[Path], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path, Turn(text="one"), Turn(text="two")) as here:
        resume = (await here.run("first")).completed.resume
        assert resume is not None
        damage(here.session_files[0])
        explicit = await here.run("second", resume=resume)
        assert explicit.messages == [explicit.completed]
        assert explicit.completed.ok is False
        assert explicit.completed.answer == ""
        error = explicit.completed.error
        assert isinstance(error, dict)
        assert error["code"] == f"resume_session_{reason}"
        assert resume.value in str(error["message"])
        assert len(here.server.requests) == 1

        fresh = await here.run("third", resume=resume, meta={"resume_source": "auto"})
        assert fresh.completed.answer == "two"
        assert fresh.completed.resume != resume
        assert here.shown()[1:] == [("user", "third")]
        (record,) = [r for r in caplog.records if r.message == "session.resume_fallback"]
        assert vars(record)["lemon_fields"] == {
            "source": "auto",
            "session_id": resume.value,
            "fallback": "fresh",
            "reason": reason,
        }


@pytest.mark.behaviour("coding_agent.5")
async def test_a_torn_last_line_is_continued(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="one"), Turn(text="two")) as here:
        resume = (await here.run("first")).completed.resume
        torn(here.session_files[0])
        assert (await here.run("second", resume=resume)).completed.answer == "two"
        assert [m["role"] for m in stored(here)] == ["user", "assistant", "user", "assistant"]


async def test_tokens_that_are_no_file_names_and_foreign_ones(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="fresh")) as here:
        live = await here.run(resume=ResumeToken(engine="lemon", value="../../../etc/passwd"))
        error = live.completed.error
        assert isinstance(error, dict)
        assert error["code"] == "resume_session_invalid"
        foreign = ResumeToken(engine="other", value="x")
        assert (await here.run(resume=foreign)).completed.answer == "fresh"


async def test_no_further_model_call_is_made_on_what_is_not_saved(tmp_path: Path) -> None:
    """When the second call begins, the file holds everything that came before it."""
    turns = (tool_turn("ls"), Turn(text="ok", gate="held"))
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks)
        with anyio.fail_after(5):
            await here.server.gate("held").reached.wait()
        assert [m["role"] for m in stored(here)] == ["user", "assistant", "tool_result"]
        here.server.gate("held").open()
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert [m["role"] for m in stored(here)][-1] == "assistant"


async def test_a_session_that_cannot_be_saved_is_told_and_the_answer_still_comes(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, Turn(text="hi")) as here:
        here.agent_dir.touch()
        live = await here.run()
        assert live.completed.answer == "hi"
        note = live.messages[-2]
        assert isinstance(note, EngineAction)
        assert (note.action.kind, note.ok, note.level) == ("note", False, "warning")


async def test_many_runs_at_once_do_not_mix(tmp_path: Path) -> None:
    turns = [Turn(text=f"answer {n}", when=f"question {n}.") for n in range(20)]
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        runs = [await here.start(tasks, f"question {n}.") for n in range(20)]
        ends: Sequence[SinkMessage] = [
            await live.until(lambda m: isinstance(m, EngineCompleted)) for live in runs
        ]
        answers = [end.answer for end in ends if isinstance(end, EngineCompleted)]
        assert answers == [f"answer {n}" for n in range(20)]
        assert len(here.session_files) == 20
        assert all(isinstance(m, EngineDelta) for m in runs[0].messages[1:-1])
