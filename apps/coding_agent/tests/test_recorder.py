"""Nothing happens that a crash would leave unrecorded (specification coding_agent 3)."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from coding_agent.recorder import Recorder
from coding_agent.session_store import SessionFile, SessionFolder
from lemon_agent import AbortSignal, AgentTool, AgentToolResult, MessageEnd, ToolCallContext
from lemon_ai import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserMessage

pytestmark = pytest.mark.anyio

PROMPT = MessageEnd(UserMessage(content="hi"))
CALL = MessageEnd(AssistantMessage(content=[ToolCall(id="c1", name="write")]))
RESULT = MessageEnd(
    ToolResultMessage(tool_call_id="c1", tool_name="write", content=[TextContent(text="x")])
)


@pytest.fixture
def session(tmp_path: Path) -> SessionFile:
    return SessionFolder(tmp_path, lambda: 1).new("/work")


def roles(folder: Path) -> list[str]:
    """What is on disk at this moment."""
    found = [path.read_text().splitlines()[1:] for path in folder.glob("sessions/*/*.jsonl")]
    return [line.split('"role":"')[1].split('"')[0] for lines in found for line in lines]


def tool(folder: Path, *, exclusive: bool) -> tuple[AgentTool, list[list[str]]]:
    """A tool that notes what is on disk when it runs."""
    seen: list[list[str]] = []

    async def execute(_: ToolCallContext) -> AgentToolResult:
        seen.append(roles(folder))
        return AgentToolResult()

    return AgentTool("write", "", {}, execute, exclusive=exclusive), seen


async def run(write: AgentTool) -> None:
    await write.execute(context())


def context(call_id: str = "c1") -> ToolCallContext:
    return ToolCallContext(call_id, {}, AbortSignal(), lambda _: None)


async def test_a_change_begins_when_its_call_is_on_disk(
    session: SessionFile, tmp_path: Path
) -> None:
    recorder = Recorder(session)
    write, seen = tool(tmp_path, exclusive=True)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, recorder.guarded(write))
            recorder.note([PROMPT])
            await anyio.lowlevel.checkpoint()
            assert seen == []
            recorder.note([CALL])
    assert seen == [["user", "assistant"]]


async def test_an_id_that_comes_again_is_a_call_of_its_own(
    session: SessionFile, tmp_path: Path
) -> None:
    """Some servers count the calls of each answer anew."""
    recorder = Recorder(session)
    write, seen = tool(tmp_path, exclusive=True)
    recorder.note([PROMPT, CALL, RESULT])
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, recorder.guarded(write))
            await anyio.lowlevel.checkpoint()
            assert seen == []
            recorder.note([CALL])
    assert len(seen[0]) == 4


async def test_a_tool_that_changes_nothing_does_not_wait(
    session: SessionFile, tmp_path: Path
) -> None:
    read, seen = tool(tmp_path, exclusive=False)
    assert Recorder(session).guarded(read) is read
    await read.execute(context())
    assert seen == [[]]


async def test_a_further_model_call_waits_for_what_it_builds_on(
    session: SessionFile, tmp_path: Path
) -> None:
    """The first one does not: its prompt is being written meanwhile."""
    recorder = Recorder(session)
    messages = [event.message for event in (PROMPT, CALL, RESULT)]
    assert await recorder.before_model_call(messages[:1], AbortSignal()) == messages[:1]
    assert roles(tmp_path) == []
    on_disk: list[str] = []

    async def call() -> None:
        await recorder.before_model_call(messages, AbortSignal())
        on_disk.extend(roles(tmp_path))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            for event in (PROMPT, CALL, RESULT):
                await anyio.lowlevel.checkpoint()
                assert on_disk == []
                assert recorder.note([event])
    assert on_disk == ["user", "assistant", "tool_result"]
    assert not recorder.note([])
