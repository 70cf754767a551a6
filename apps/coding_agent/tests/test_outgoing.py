"""What is sent of earlier answers (specification coding_agent 5)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from coding_agent.outgoing import EXCERPT_BYTES, MAX_ARGUMENT_BYTES, Outgoing
from coding_agent.tests.scene import scene, stored, tool_turn
from lemon_agent import AgentMessage
from lemon_ai import AssistantMessage, TextContent, ThinkingContent, ToolCall, UserMessage
from lemon_ai.testing import Turn

pytestmark = pytest.mark.anyio

LONG = "begin " + "ä" * 10_000 + " end"


def calling(**arguments: Any) -> AssistantMessage:
    return AssistantMessage(content=[ToolCall(id="c1", name="write", arguments=arguments)])


async def sent(outgoing: Outgoing, *messages: AgentMessage) -> list[Any]:
    with anyio.fail_after(5):
        return list(await outgoing.limited(messages))


async def test_a_long_argument_is_sent_as_an_excerpt(tmp_path: Path) -> None:
    """The conversation keeps it, the whole of it is in a private file, and others stay."""
    message = calling(path="a", content=LONG, lines=["x" * 20_000])
    outgoing = Outgoing(tmp_path / "spill")
    (shown,) = await sent(outgoing, message)
    (path,) = (tmp_path / "spill").iterdir()
    assert path.read_text() == LONG
    assert path.stat().st_mode & 0o777 == 0o600
    arguments = shown.content[0].arguments
    excerpt = arguments["content"].pop("head_tail_excerpt")
    assert arguments == {
        "path": "a",
        "content": {
            "_truncated": True,
            "bytes": 20_010,
            "sha256": hashlib.sha256(LONG.encode()).hexdigest(),
            "spill_path": str(path),
        },
        "lines": ["x" * 20_000],
    }
    assert excerpt.startswith("begin ä")
    assert excerpt.endswith("ä end")
    assert len(excerpt.encode()) < EXCERPT_BYTES + 100
    (kept,) = message.content
    assert isinstance(kept, ToolCall)
    assert kept.arguments["content"] == LONG


async def test_what_is_sent_once_is_sent_again_as_it_was(tmp_path: Path) -> None:
    outgoing, old = Outgoing(tmp_path), calling(content=LONG)
    (first,) = await sent(outgoing, old)
    again = await sent(outgoing, old, UserMessage(content="more"))
    assert again[0] is first


async def test_messages_within_the_limits_are_the_very_same(tmp_path: Path) -> None:
    messages = (
        UserMessage(content=LONG),
        calling(content="x" * MAX_ARGUMENT_BYTES),
        AssistantMessage(content=[ThinkingContent(thinking="t"), TextContent(text=LONG)]),
    )
    assert await Outgoing(tmp_path / "spill").limited(messages) is messages
    assert not (tmp_path / "spill").exists()


@pytest.mark.parametrize(("limit", "left"), [(100, 1), (0, 0)])
async def test_long_thinking_is_cut_and_none_is_sent_when_none_is_wanted(
    tmp_path: Path, limit: int, left: int
) -> None:
    message = AssistantMessage(
        content=[ThinkingContent(thinking="a" * 500 + "b" * 500), TextContent(text="so")]
    )
    (shown,) = await sent(Outgoing(tmp_path, max_thinking_bytes=limit), message)
    thinking = [block for block in shown.content if isinstance(block, ThinkingContent)]
    assert len(thinking) == left
    assert [block.thinking for block in thinking] in (
        [],
        ["a" * 50 + "\n[… 900 bytes left out …]\n" + "b" * 50],
    )
    assert shown.content[-1] == TextContent(text="so")


async def test_signed_and_hidden_thinking_is_sent_as_it_is(tmp_path: Path) -> None:
    """Its provider refuses it otherwise."""
    message = AssistantMessage(
        content=[
            ThinkingContent(thinking="a" * 500, thinking_signature="s"),
            ThinkingContent(thinking="a" * 500, redacted_data="r"),
        ]
    )
    (shown,) = await sent(Outgoing(tmp_path, max_thinking_bytes=100), message)
    assert shown is message


async def test_a_disk_that_takes_nothing_costs_the_whole_and_not_the_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (shown,) = await sent(Outgoing(tmp_path / "file" / "spill"), calling(content=LONG))
    assert shown.content[0].arguments["content"]["spill_path"] is None


async def test_a_run_sends_the_excerpt_and_keeps_the_whole(tmp_path: Path) -> None:
    turns = (tool_turn("write", path="a.txt", content=LONG), Turn(text="ok"))
    async with scene(tmp_path, *turns) as here:
        await here.run()
        assert (here.cwd / "a.txt").read_text() == LONG
        (call,) = here.server.requests[-1].body["messages"][-2]["tool_calls"]
        content = json.loads(call["function"]["arguments"])["content"]
        assert content["_truncated"] is True
        assert Path(content["spill_path"]).read_text() == LONG
        assert LONG in json.dumps(stored(here), ensure_ascii=False)
