"""Secrets in what a model reads, and their marks in what it writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from coding_agent.secret_guard import FRESH_MS, KnownSecrets, secretive
from coding_agent.settings import secret_values
from coding_agent.tests.scene import Scene, scene, text_of, tool_turn
from lemon_agent import AbortSignal, AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_ai.testing import Turn
from lemon_core.config.model import LemonConfig, Provider
from lemon_core.secret_marks import mark
from lemon_core.secret_record import SecretInfo
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

TOKEN = "tok-0123456789abcdef"
MARK = mark("DEPLOY_API_KEY")
BEGIN = "*** Begin Patch"


class Stored:
    def __init__(self, **values: str) -> None:
        self.values = values
        self.updated_at = 1
        self.reads: list[str] = []

    async def list(self) -> tuple[SecretInfo, ...]:
        rows = [SimpleNamespace(name=n, updated_at=self.updated_at) for n in self.values]
        return cast("tuple[SecretInfo, ...]", tuple(rows))

    async def get(self, name: str, *, count_use: bool = True) -> str:
        assert not count_use
        self.reads.append(name)
        return self.values[name]


async def test_secrets_of_all_places_are_known_and_decrypted_once() -> None:
    clock, stored = FakeClock(), Stored(stored_token="stored-0123456789")
    known = KnownSecrets(lambda: {"ENV": TOKEN}, stored, clock)
    marks = await known.marks()
    assert marks.masked(f"{TOKEN} stored-0123456789") == f"{mark('ENV')} {mark('stored_token')}"
    assert await known.marks() is marks
    await clock.advance(FRESH_MS)
    assert await known.marks() is marks
    assert stored.reads == ["stored_token"]
    stored.values["stored_token"], stored.updated_at = "changed-0123456789", 2
    assert (await known.marks()).masked("changed-0123456789") == "changed-0123456789"
    await clock.advance(FRESH_MS)
    assert (await known.marks()).masked("changed-0123456789") == mark("stored_token")


def test_keys_of_the_environment_and_the_configuration_are_secrets() -> None:
    config = LemonConfig(providers={"a": Provider(api_key="key-of-a"), "b": Provider(api_key="k")})
    environ = {"OPENAI_API_KEY": "k", "PATH": "/bin", "LEMON_X_TOKEN": "t"}
    assert secret_values(environ, config) == {
        "OPENAI_API_KEY": "k",
        "LEMON_X_TOKEN": "t",
        "providers.a.api_key": "key-of-a",
    }


async def test_results_updates_details_and_errors_are_masked() -> None:
    updates: list[AgentToolResult] = []

    async def execute(call: ToolCallContext) -> AgentToolResult:
        call.on_update(AgentToolResult.of_text(f"so far {TOKEN}"))
        if call.params.get("fails"):
            raise ToolError(f"bad {TOKEN}")
        return AgentToolResult.of_text(f"it is {TOKEN}", details={"diff": [f"+{TOKEN}"], "n": 1})

    known = KnownSecrets(lambda: {"DEPLOY_API_KEY": TOKEN}, Stored(), FakeClock())
    tool = secretive(AgentTool("t", "", {}, execute), known, writes=False)
    call = ToolCallContext("c", {"text": MARK}, AbortSignal(), updates.append)
    result = await tool.execute(call)
    assert result.text == f"it is {MARK}"
    assert result.details == {"diff": [f"+{MARK}"], "n": 1}
    assert [each.text for each in updates] == [f"so far {MARK}"]
    with pytest.raises(ToolError) as failed:
        await tool.execute(ToolCallContext("c", {"fails": True}, AbortSignal(), updates.append))
    assert str(failed.value) == f"bad {MARK}"


def said(here: Scene) -> list[str]:
    return [
        text_of(message["content"])
        for message in here.server.requests[-1].body["messages"]
        if message["role"] == "tool"
    ]


@pytest.mark.behaviour("coding_agent.128")
async def test_a_mark_is_never_written_in_the_place_of_its_secret(tmp_path: Path) -> None:
    """Also by a later run that has only the transcript."""
    line = f"KEY={MARK}\n"
    writing = (
        tool_turn("write", path="copy.env", content=line),
        tool_turn("edit", path=".env", old_text=line, new_text=f"X={MARK}\n"),
        tool_turn("bash", command=f"echo {MARK} > copy.env"),
        tool_turn(
            "patch", patch_text=f"*** Begin Patch\n*** Add File: copy.env\n+{line}*** End Patch"
        ),
        tool_turn("hashline_edit", path=".env", edits=[{"op": "append", "lines": [MARK]}]),
    )
    turns = (tool_turn("read", path=".env"), Turn(text="read"), *writing, Turn(text="refused"))
    async with scene(tmp_path, *turns) as here:
        here.runtime.environ["DEPLOY_API_KEY"] = TOKEN
        (here.cwd / ".env").write_text(f"KEY={TOKEN}\n")
        first = await here.run()
        assert said(here) == [f"1: KEY={MARK}"]
        (path,) = here.session_files
        assert TOKEN not in path.read_text()
        del here.runtime.environ["DEPLOY_API_KEY"]
        await here.run(resume=first.completed.resume)
        refusals = said(here)[1:]
        assert len(refusals) == len(writing)
        for text in refusals:
            assert "the mark of a secret (DEPLOY_API_KEY) and not its value" in text
            assert "the variable $DEPLOY_API_KEY in a command" in text
        assert (here.cwd / ".env").read_text() == f"KEY={TOKEN}\n"
        assert not (here.cwd / "copy.env").exists()
