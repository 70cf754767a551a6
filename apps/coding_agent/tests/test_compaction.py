"""Compaction of a run, from the session file to the wire (specification coding_agent 5, 11.9)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from coding_agent.compaction import INSTRUCTION, UNKNOWN_WINDOW, window_of
from coding_agent.services import services
from coding_agent.tests.scene import Live, Scene, models_with, scene, tool_turn
from lemon_ai import Model
from lemon_ai.testing import FakeToolCall, FakeUsage, HttpError, Turn
from lemon_core.config.model import Compaction
from lemon_core.execution_context import Limits
from lemon_gateway.requests import EngineAction, EngineCompleted

pytestmark = pytest.mark.anyio

LONG = "word " * 4_000  # about 5,000 tokens
REFUSED = HttpError(
    400, message="This model's maximum context length is 8192 tokens; you sent more."
)


async def window(here: Scene, tokens: int, **changes: object) -> None:
    """Give the scene's model a window, and keep little of a conversation."""
    shared = here.runtime.service(services)
    shared.models = await models_with(here, {"context_window": tokens, **changes})
    settings = Compaction(reserve_tokens=tokens // 10, keep_recent_tokens=1_000)
    shared.settings = replace(shared.settings, compaction=settings)


def entries(here: Scene) -> list[dict[str, Any]]:
    (path,) = here.session_files
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def notes(live: Live) -> list[EngineAction]:
    return [a for a in live.actions if a.action.id.startswith("lemon.compaction.")]


def is_summary_request(here: Scene, index: int) -> bool:
    return here.shown(index)[0] == ("system", INSTRUCTION)


def full(text: str, tokens: int = 22_000) -> Turn:
    """An answer that reports how long the conversation has become."""
    return Turn(text=text, usage=FakeUsage(input=tokens, output=1))


def test_the_window_is_what_is_configured_or_known() -> None:
    known = Model(id="m", api="a", provider="p", context_window=5_000)
    unknown = Model(id="m", api="a", provider="p")
    assert window_of(known, Compaction()) == 5_000
    assert window_of(unknown, Compaction()) == UNKNOWN_WINDOW
    assert window_of(known, Compaction(context_window_tokens=7)) == 7


@pytest.mark.behaviour("coding_agent.9")
async def test_a_long_conversation_goes_on_from_its_summary(tmp_path: Path) -> None:
    """It is told, counted, stored, and not repeated by the run that continues."""
    turns = (
        full(LONG),
        Turn(text="They talked.", usage=FakeUsage(input=300, output=5)),
        Turn(text="second answer", usage=FakeUsage(input=3_000, output=2)),
        Turn(text="third answer"),
    )
    async with scene(tmp_path, *turns) as here:
        await window(here, 24_000)
        first = await here.run("first question")
        second = await here.run("second question", resume=first.completed.resume)
        assert second.completed.answer == "second answer"

        # The summary is the model's own, of what is no longer sent.
        assert is_summary_request(here, 1)
        assert "[User]\nfirst question" in here.shown(1)[1][1]
        shown = here.shown(2)
        assert "They talked." in shown[1][1]
        assert "first question" not in str(shown)
        assert shown[-1] == ("user", "second question")

        # Whoever watches sees it begin and end, and the price is in the bill.
        begun, done = notes(second)
        assert (begun.phase, begun.action.title) == ("started", "Shortening the conversation")
        assert (done.phase, done.ok) == ("completed", True)
        assert done.action.title.startswith("Shortened the conversation: about 22,0")
        usage = second.completed.usage
        assert usage is not None
        assert usage["input"] == 3_300
        assert usage["context_tokens"] == 3_000

        # One entry names what is kept.
        (entry,) = [e for e in entries(here) if e["type"] == "compaction"]
        kept = next(e for e in entries(here) if e["id"] == entry["firstKeptEntryId"])
        assert kept["type"] == "message"
        assert "They talked." in entry["summary"]
        assert entry["tokensBefore"] > 22_000
        assert entry["details"] == {"read_files": [], "modified_files": []}

        third = await here.run("third question", resume=second.completed.resume)
        assert third.completed.answer == "third answer"
        assert notes(third) == []
        assert here.shown(3)[: len(shown)] == shown
        assert len(here.server.requests) == 4


@pytest.mark.behaviour("coding_agent.9")
@pytest.mark.behaviour("coding_agent.126")
async def test_it_is_checked_before_each_call_inside_a_tool_loop(tmp_path: Path) -> None:
    """30 results of 5,000 tokens in a window of 100,000: calls and results stay together."""
    reads = [
        Turn(tool_calls=[FakeToolCall("read", {"path": "big.txt", "limit": 400 + n})], usage=None)
        for n in range(30)
    ]
    summary = Turn(text="So far so good.", when="<transcript>")
    turns = [*reads, Turn(text="done"), summary, summary, summary]
    async with scene(tmp_path, *turns) as here:
        (here.cwd / "big.txt").write_text(("x" * 44 + "\n") * 500)
        await window(here, 100_000)
        live = await here.run("read it all")
        assert live.completed.answer == "done"
        passes = [note for note in notes(live) if note.phase == "completed"]
        assert 1 <= len(passes) <= 3
        assert all(note.ok for note in passes)
        for index, request in enumerate(here.server.requests):
            if is_summary_request(here, index):
                continue
            assert len(json.dumps(request.body)) / 4 < 100_000
            calls = [c["id"] for m in request.body["messages"] for c in m.get("tool_calls", ())]
            results = [m["tool_call_id"] for m in request.body["messages"] if m["role"] == "tool"]
            assert calls == results


@pytest.mark.behaviour("coding_agent.125")
async def test_a_fixed_part_that_is_too_large_is_named_once(tmp_path: Path) -> None:
    """Then a larger model goes on with the same conversation."""
    async with scene(tmp_path, Turn(text="now it fits")) as here:
        await window(here, 8_000)
        own = {"system_prompt": "rule " * 7_200}
        live = await here.run("hello", meta=own)
        error = live.completed.error
        assert isinstance(error, dict)
        assert error["code"] == "context_too_large"
        assert "the fixed part of the prompt takes about" in str(error["message"])
        assert "system prompt 9" in str(error["message"])
        assert here.server.requests == []

        await window(here, 200_000)
        again = await here.run("once more", resume=live.completed.resume, meta=own)
        assert again.completed.answer == "now it fits"
        assert [text for role, text in here.shown() if role == "user"] == ["hello", "once more"]


@pytest.mark.behaviour("coding_agent.127")
async def test_the_request_for_the_summary_fits_the_window_too(tmp_path: Path) -> None:
    """A summary that is refused for its length is asked for with half as much."""
    refused = Turn(http_error=REFUSED, when="<transcript>")
    turns = (full(LONG * 3), refused, Turn(text="short"), Turn(text="ok"))
    async with scene(tmp_path, *turns) as here:
        await window(here, 24_000)
        first = await here.run(LONG * 3)
        second = await here.run("and now?", resume=first.completed.resume)
        assert second.completed.answer == "ok"
        sizes = [
            len(json.dumps(request.body))
            for index, request in enumerate(here.server.requests)
            if is_summary_request(here, index)
        ]
        assert len(sizes) == 2
        assert all(size / 3 < 24_000 for size in sizes)


@pytest.mark.parametrize(
    "answer", [Turn(http_error=HttpError(400, message="no")), Turn(text=" ", finish_reason="stop")]
)
@pytest.mark.behaviour("coding_agent.127")
async def test_without_an_answer_a_plain_list_stands_in(tmp_path: Path, answer: Turn) -> None:
    async with scene(tmp_path, full(LONG), answer, Turn(text="ok")) as here:
        await window(here, 24_000)
        first = await here.run("tell me a story")
        second = await here.run("and now?", resume=first.completed.resume)
        assert second.completed.answer == "ok"
        assert "The user wrote: tell me a story" in here.shown()[1][1]


async def test_a_small_model_without_tools_is_not_asked(tmp_path: Path) -> None:
    async with scene(tmp_path, full(LONG), Turn(text="ok")) as here:
        await window(here, 24_000, tools=False)
        first = await here.run("tell me a story")
        second = await here.run("and now?", resume=first.completed.resume)
        assert second.completed.answer == "ok"
        assert len(here.server.requests) == 2
        assert "no model has summarised them" in here.shown()[1][1]


@pytest.mark.behaviour("coding_agent.127")
async def test_a_refusal_for_length_is_answered_by_one_compaction(tmp_path: Path) -> None:
    """Also where nobody knew the window: the provider's refusal is the trigger."""
    turns = [Turn(text=f"answer {n}") for n in range(4)]
    refused = Turn(http_error=REFUSED)
    async with scene(tmp_path, *turns, refused, Turn(text="sum"), Turn(text="ok")) as here:
        resume = None
        for n in range(4):
            resume = (await here.run(f"question {n} {LONG}", resume=resume)).completed.resume
        live = await here.run("last question", resume=resume)
        assert live.completed.answer == "ok"
        assert "sum" in here.shown()[1][1]
        assert here.shown()[-1] == ("user", "last question")


async def test_a_summary_counts_against_the_limit_of_the_run(tmp_path: Path) -> None:
    turns = (full(LONG), Turn(text="sum", usage=FakeUsage(input=900, output=200)), tool_turn("ls"))
    async with scene(tmp_path, *turns) as here:
        await window(here, 24_000)
        first = await here.run("first")
        limited = await here.run(
            "second", resume=first.completed.resume, limits=Limits(max_tokens=1_000)
        )
        error = limited.completed.error
        assert isinstance(error, dict)
        assert error["code"] == "max_tokens_exhausted"


async def test_a_cancel_ends_a_summary_that_is_being_written(tmp_path: Path) -> None:
    """Nothing of it is kept: the next run makes its own."""
    held = Turn(text=["half ", "a summary"], gate="held", gate_after=1)
    turns = (full(LONG), held, Turn(text="whole summary"), Turn(text="ok"))
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        await window(here, 24_000)
        first = await here.run("first")
        live = await here.start(tasks, "second", resume=first.completed.resume)
        with anyio.fail_after(5):
            await here.server.gate("held").reached.wait()
        await here.executor.cancel(live.handle.control)
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert live.completed.error == "Cancelled by user"
        assert [note.ok for note in notes(live)] == [None, False]
        assert not [e for e in entries(here) if e["type"] == "compaction"]
        last = await here.run("third", resume=first.completed.resume)
        assert last.completed.answer == "ok"
        assert "whole summary" in here.shown()[1][1]


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    async with scene(tmp_path, full(LONG), Turn(text="ok")) as here:
        await window(here, 24_000)
        shared = here.runtime.service(services)
        shared.settings = replace(shared.settings, compaction=Compaction(enabled=False))
        first = await here.run("first")
        await here.run("second", resume=first.completed.resume)
        assert len(here.server.requests) == 2
