"""Conversations on disk (specification coding_agent 3)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import pytest

from coding_agent.errors import SessionCorrupt, SessionInvalid, SessionMissing
from coding_agent.session_format import entry_line, new_entry_id, parse_message, plain
from coding_agent.session_store import SessionFile, SessionFolder, folder_name
from lemon_ai import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)

pytestmark = pytest.mark.anyio

CWD = "/home/me/project"
USER = UserMessage(content="hi", timestamp=1)
CALLS = AssistantMessage(
    content=[
        TextContent(text="let me see"),
        ToolCall(id="c1", name="bash", arguments={"command": "ls", "why": None}),
    ],
    provider="openai",
    model="m",
    api="a",
    usage=Usage(input=3),
    stop_reason="tool_use",
    timestamp=2,
)
RESULT = ToolResultMessage(
    tool_call_id="c1",
    tool_name="bash",
    content=[TextContent(text="x"), ImageContent(data="AAAA")],
    details={"exit_code": 0},
    trust="untrusted",
    timestamp=3,
)
ANSWER = AssistantMessage(content=[TextContent(text="done")], timestamp=4)
TURN: list[Message] = [USER, CALLS, RESULT, ANSWER]


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder(tmp_path / "agent", lambda: 7)


async def stored(folder: SessionFolder, *messages: Message, cwd: str = CWD) -> SessionFile:
    session = folder.new(cwd)
    for message in messages:
        session.append(message)
    assert await session.flush()
    return session


def path_of(session: SessionFile) -> Path:
    return session._path


def lines_of(session: SessionFile) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path_of(session).read_text().splitlines()]


async def test_the_file_is_a_header_and_a_chain_of_entries(folder: SessionFolder) -> None:
    session = await stored(folder, *TURN)
    header, *entries = lines_of(session)
    assert header == {
        "type": "session",
        "version": 3,
        "id": session.id,
        "timestamp": 7,
        "cwd": CWD,
    }
    ids = [entry["id"] for entry in entries]
    assert len(set(ids)) == 4
    assert all(len(i) == 8 and int(i, 16) >= 0 for i in ids)
    assert [entry.get("parentId") for entry in entries] == [None, *ids[:3]]
    assert entries[0] == {
        "type": "message",
        "id": ids[0],
        "timestamp": 7,
        "message": {"role": "user", "content": "hi", "timestamp": 1},
    }
    assert entries[2]["message"] == {
        "role": "tool_result",
        "tool_call_id": "c1",
        "tool_name": "bash",
        "content": [
            {"type": "text", "text": "x"},
            {"type": "image", "data": "AAAA", "mime_type": "image/png"},
        ],
        "details": {"exit_code": 0},
        "trust": "untrusted",
        "is_error": False,
        "timestamp": 3,
    }


async def test_a_conversation_reads_back_and_goes_on(folder: SessionFolder) -> None:
    first = await stored(folder, *TURN)
    session, messages = await folder.load(first.id, CWD)
    assert messages == TURN
    more = UserMessage(content="more", timestamp=5)
    session.append(more)
    assert await session.flush()
    assert (await folder.load(first.id, CWD))[1] == [*TURN, more]
    entries = lines_of(first)[1:]
    assert entries[-1]["parentId"] == entries[-2]["id"]


async def test_files_and_folders_are_private(folder: SessionFolder, tmp_path: Path) -> None:
    session = await stored(folder, USER)
    assert path_of(session).stat().st_mode & 0o777 == 0o600
    for part in ("agent", "agent/sessions", "agent/sessions/--home-me-project--"):
        assert (tmp_path / part).stat().st_mode & 0o777 == 0o700
    assert folder.spill_dir("x") == tmp_path / "agent/spill/x"


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        ("/home/me/project", "--home-me-project--"),
        ("/", "------"),
        ("C:\\Users\\me", "--C-Users-me--"),
        ("/a//b", "--a-b--"),
    ],
)
def test_a_directory_has_a_folder(cwd: str, name: str) -> None:
    assert folder_name(cwd) == name


def test_a_long_directory_has_a_short_folder() -> None:
    one, other = folder_name("/ä" * 200 + "/a"), folder_name("/ä" * 200 + "/b")
    assert one != other
    assert len(one.encode()) < 250


@pytest.mark.behaviour("coding_agent.5")
async def test_a_torn_last_line_is_dropped_and_cut_off_before_the_next(
    folder: SessionFolder,
) -> None:
    """Whatever part of the line is there; nothing before it is touched."""
    whole = await stored(folder, *TURN)
    data = path_of(whole).read_bytes()
    last = data.rindex(b"\n", 0, len(data) - 1) + 1
    for size in range(last, len(data)):
        path_of(whole).write_bytes(data[:size])
        session, messages = await folder.load(whole.id, CWD)
        assert messages == TURN[:3]
        assert path_of(whole).read_bytes() == data[:size]
        session.append(ANSWER)
        assert await session.flush()
        assert (await folder.load(whole.id, CWD))[1] == TURN


async def test_a_torn_line_is_left_when_somebody_else_has_written(folder: SessionFolder) -> None:
    whole = await stored(folder, USER)
    with path_of(whole).open("ab") as file:
        file.write(b'{"torn')
    session, _ = await folder.load(whole.id, CWD)
    with path_of(whole).open("ab") as file:
        file.write(b"more")
    session.append(ANSWER)
    await session.flush()
    assert b'{"tornmore' in path_of(whole).read_bytes()


async def test_a_little_is_written_at_once_and_much_in_its_turn(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never is something of it left out, doubled, or put before what is being written."""
    session = folder.new(CWD)
    session.append(USER)
    assert not session.flush_at_once()  # there is no file yet
    assert await session.flush()
    session.append(ANSWER)
    assert session.flush_at_once()
    assert session.flush_at_once()  # nothing is left
    assert (await folder.load(session.id, CWD))[1] == [USER, ANSWER]
    monkeypatch.setattr("coding_agent.session_store.MAX_INLINE_BYTES", 10)
    session.append(USER)
    assert not session.flush_at_once()
    assert await session.flush()
    monkeypatch.undo()
    async with session._lock:
        session.append(ANSWER)
        assert not session.flush_at_once()
    path_of(session).rename(path_of(session).with_suffix(".away"))
    assert not session.flush_at_once()  # the disk does not take it, so it stays noted
    path_of(session).with_suffix(".away").rename(path_of(session))
    assert await session.flush()
    assert (await folder.load(session.id, CWD))[1] == [USER, ANSWER, USER, ANSWER]


@pytest.mark.behaviour("coding_agent.5")
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{nonsense", "line 3: "),
        (b"[]", "not a JSON object"),
        (b'{"type":"message","message":{}}', "id None is missing"),
        (b'{"type":"label","id":"x","parentId":"nobody"}', "names no earlier entry"),
        (b'{"type":"message","id":"x","message":{"role":"robot"}}', "robot"),
        (b"", "line 3: "),
    ],
)
async def test_any_other_bad_line_is_reported_and_kept(
    folder: SessionFolder, line: bytes, problem: str
) -> None:
    session = await stored(folder, USER, ANSWER)
    lines = path_of(session).read_bytes().split(b"\n")
    lines.insert(2, line)
    path_of(session).write_bytes(b"\n".join(lines))
    before = path_of(session).read_bytes()
    with pytest.raises(SessionCorrupt) as caught:
        await folder.load(session.id, CWD)
    assert caught.value.code == "resume_session_corrupt"
    assert str(path_of(session)) in str(caught.value)
    assert problem.removeprefix("line 3: ") in str(caught.value)
    assert path_of(session).read_bytes() == before


async def test_two_entries_with_one_id_are_corrupt(folder: SessionFolder) -> None:
    session = await stored(folder, USER)
    data = path_of(session).read_bytes()
    path_of(session).write_bytes(data + data.splitlines(keepends=True)[1])
    with pytest.raises(SessionCorrupt, match="used before"):
        await folder.load(session.id, CWD)


async def test_what_is_not_there_is_missing(folder: SessionFolder) -> None:
    session = await stored(folder, USER, cwd="/a-b")
    with pytest.raises(SessionMissing, match="there is no session gone in /a-b"):
        await folder.load("gone", "/a-b")
    with pytest.raises(SessionMissing):
        await folder.load(session.id, "/elsewhere")
    # /a-b and /a/b share a folder.
    with pytest.raises(SessionMissing):
        await folder.load(session.id, "/a/b")


@pytest.mark.parametrize("token", ["../../etc/passwd", "", "a.b", "x" * 200, "a\0"])
async def test_what_is_no_id_is_invalid(folder: SessionFolder, token: str) -> None:
    with pytest.raises(SessionInvalid, match="that is no session id"):
        await folder.load(token, CWD)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"", "does not begin with a header"),
        (b'{"type":"session"', "does not begin with a header"),
        (b'{"type":"other"}\n', "the header of something else"),
        (b'{"type":"session","id":"s1","version":9,"cwd":"/home/me/project"}\n', "version 9"),
    ],
)
async def test_a_file_without_a_usable_header_is_invalid(
    folder: SessionFolder, tmp_path: Path, header: bytes, problem: str
) -> None:
    path = tmp_path / "agent/sessions/--home-me-project--/s1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(header)
    with pytest.raises(SessionInvalid, match=problem):
        await folder.load("s1", CWD)


async def test_a_file_that_cannot_be_read_is_invalid(folder: SessionFolder, tmp_path: Path) -> None:
    (tmp_path / "agent/sessions/--home-me-project--/s1.jsonl").mkdir(parents=True)
    with pytest.raises(SessionInvalid, match="Is a directory"):
        await folder.load("s1", CWD)


async def test_entries_of_other_types_are_kept_and_not_shown(folder: SessionFolder) -> None:
    session = await stored(folder, USER)
    parent = lines_of(session)[-1]["id"]
    with path_of(session).open("a") as file:
        file.write(json.dumps({"type": "label", "id": "l1", "parentId": parent}) + "\n")
    again, messages = await folder.load(session.id, CWD)
    assert messages == [USER]
    again.append(ANSWER)
    await again.flush()
    assert lines_of(session)[-1]["parentId"] == "l1"


async def test_the_last_entry_decides_which_branch_goes_on(folder: SessionFolder) -> None:
    session = await stored(folder, USER, CALLS)
    first = lines_of(session)[1]["id"]
    with path_of(session).open("ab") as file:
        file.write(entry_line("abcdef01", first, 8, ANSWER))
    assert (await folder.load(session.id, CWD))[1] == [USER, ANSWER]


async def test_a_transcript_that_is_cut_short_branches_off_there(folder: SessionFolder) -> None:
    orphan = RESULT.model_copy(update={"tool_call_id": "nobody"})
    session = await stored(folder, USER, orphan, ANSWER)
    again, messages = await folder.load(session.id, CWD)
    assert messages == [USER]
    again.append(ANSWER)
    await again.flush()
    entries = lines_of(session)[1:]
    assert len(entries) == 4
    assert entries[-1]["parentId"] == entries[0]["id"]
    assert (await folder.load(session.id, CWD))[1] == [USER, ANSWER]


async def test_many_flushes_at_once_write_each_entry_once(folder: SessionFolder) -> None:
    session = folder.new(CWD)
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            session.append(UserMessage(content=str(number), timestamp=0))
            tasks.start_soon(session.flush)
    messages = (await folder.load(session.id, CWD))[1]
    assert [message.content for message in messages] == [str(n) for n in range(50)]


async def test_a_flush_that_is_cancelled_loses_nothing(folder: SessionFolder) -> None:
    session = folder.new(CWD)
    session.append(USER)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await session.flush()
    assert await session.flush()
    assert (await folder.load(session.id, CWD))[1] == [USER]


async def test_a_disk_that_takes_nothing_is_tried_again(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an entry that was written is taken back."""
    session = await stored(folder, USER)
    real = os.write

    def full(fd: int, data: Any) -> int:
        if len(data) > 20:
            return real(fd, data[:20])
        raise OSError(28, "No space left on device")

    before = path_of(session).read_bytes()
    session.append(CALLS)
    monkeypatch.setattr(os, "write", full)
    assert not await session.flush()
    assert path_of(session).read_bytes() == before
    monkeypatch.undo()
    session.append(RESULT)
    assert await session.flush()
    assert (await folder.load(session.id, CWD))[1] == [USER, CALLS, RESULT]


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "agent").touch()
    session = SessionFolder(tmp_path / "agent", lambda: 7).new(CWD)
    session.append(USER)
    assert not await session.flush()


def test_only_what_json_holds_is_stored() -> None:
    @dataclass
    class Secret:
        password: str = "hunter2"

    value = {
        "n": [1, 2.5, True, None, "x"],
        "path": PurePosixPath("/a"),
        "raw": b"b",
        "secret": Secret(),
        5: ("t",),
    }
    assert plain(value) == {
        "n": [1, 2.5, True, None, "x"],
        "path": "PurePosixPath('/a')",
        "raw": "b'b'",
        "secret": "<Secret>",
        "5": ["t"],
    }
    loop: list[object] = []
    loop.append(loop)
    assert "<list>" in json.dumps(plain(loop))
    line = entry_line("i", None, 1, RESULT.model_copy(update={"details": value}))
    assert b"hunter2" not in line
    assert json.loads(line)["message"]["details"]["secret"] == "<Secret>"


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    line = entry_line("i", "p", 1, UserMessage(content="a\ud800b", timestamp=1))
    assert json.loads(line)["message"]["content"] == "a?b"


def test_arguments_keep_their_nulls() -> None:
    line = entry_line("i", None, 1, CALLS)
    assert parse_message(json.loads(line)["message"]) == CALLS


def test_a_missing_trust_reads_as_trusted() -> None:
    message = parse_message({"role": "tool_result", "tool_call_id": "a", "tool_name": "b"})
    assert isinstance(message, ToolResultMessage)
    assert message.trust == "trusted"


def test_an_entry_id_is_never_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter([0xA, 0xA, 0xBBBBBBBB])
    monkeypatch.setattr("random.getrandbits", lambda _: next(given))
    assert new_entry_id({"0000000a"}) == "bbbbbbbb"
