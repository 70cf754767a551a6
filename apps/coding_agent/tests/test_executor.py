"""The executor end to end: real HTTP, real files, real processes (specification coding_agent 1)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from coding_agent.services import Models, services
from coding_agent.tests.scene import (
    models_with,
    phases,
    scene,
    stored,
    tool_turn,
)
from lemon_agent.runtime import ModelChoice, UnknownModel
from lemon_ai.testing import FakeToolCall, HttpError, Turn
from lemon_core.events import Action
from lemon_core.runs import Image
from lemon_gateway.executor import Executor, ExecutorError, RunOptions, RunSink
from lemon_gateway.requests import EngineAction

pytestmark = pytest.mark.anyio


@pytest.mark.behaviour("coding_agent.1")
async def test_a_run_streams_uses_a_tool_and_can_be_continued(tmp_path: Path) -> None:
    turns = (
        tool_turn("write", path="hello.txt", content="hi"),
        Turn(text="It is done."),
        Turn(text="I wrote hello.txt."),
    )
    async with scene(tmp_path, *turns) as here:
        first = await here.run("create hello.txt holding hi")
        assert (here.cwd / "hello.txt").read_text() == "hi"
        assert [type(m).__name__ for m in first.messages] == [
            "EngineStarted",
            "EngineAction",
            "EngineAction",
            "EngineDelta",
            "EngineDelta",
            "EngineDelta",
            "EngineCompleted",
        ]
        assert all(m.run_ref == first.handle.run_ref for m in first.messages)
        assert phases(first) == [
            ("write: hello.txt", "started", None),
            ("write: hello.txt", "completed", True),
        ]
        resume = first.started.resume
        assert resume is not None
        assert first.started.meta == {
            "cwd": str(here.cwd),
            "model": "gpt-test",
            "provider": "openai",
        }
        end = first.completed
        assert (end.ok, end.answer, end.error, end.resume) == (True, "It is done.", None, resume)
        assert "".join(first.deltas) == end.answer
        assert end.usage is not None
        assert (end.usage["input"], end.usage["output"]) == (20, 5)
        assert end.usage["context_tokens"] == 10

        second = await here.run("what did you do?", resume=resume)
        assert second.completed.answer == "I wrote hello.txt."
        assert second.completed.resume == resume
        roles = [role for role, _ in here.shown()]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
        assert here.shown()[1:][0] == ("user", "create hello.txt holding hi")
        assert len(here.session_files) == 1


async def test_a_real_executor_has_the_four_calls(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        assert isinstance(here.executor, Executor)


async def test_every_tool_works_through_the_loop(tmp_path: Path) -> None:
    turns = (
        tool_turn("write", path="src/a.py", content="x = 1\n"),
        tool_turn("edit", path="src/a.py", old_text="x = 1", new_text="x = 2"),
        Turn(
            tool_calls=[
                FakeToolCall("read", {"path": "src/a.py"}),
                FakeToolCall("grep", {"pattern": "x ="}),
                FakeToolCall("ls", {"path": "src"}),
                FakeToolCall("bash", {"command": "cat src/a.py; exit 1"}),
            ]
        ),
        Turn(text="done"),
    )
    async with scene(tmp_path, *turns) as here:
        live = await here.run()
        assert live.completed.ok
        results = [text for role, text in here.shown() if role == "tool"]
        assert results[2:] == [
            "1: x = 2",
            "Found 1 match.\nsrc/a.py:1: x = 2",
            "Directory: src\n- a.py\n1 entry",
            "x = 2\nCommand exited with code 1",
        ]
        ends = [a for a in live.actions if a.phase == "completed"]
        bash = next(a for a in ends if a.action.title == "`cat src/a.py; exit 1`")
        assert bash.ok is False
        assert bash.action.detail is not None
        assert bash.action.detail["result_meta"] == {
            "exit_code": 1,
            "error_type": "command_exit",
            "message": "Command exited with code 1",
        }
        assert [a.ok for a in ends].count(True) == 5


async def test_arguments_that_do_not_fit_are_answered_and_nothing_runs(tmp_path: Path) -> None:
    """Each tool takes what it lists, and nothing else."""
    bad: list[tuple[str, dict[str, Any]]] = [
        ("read", {}),
        ("read", {"path": "a", "offset": "first"}),
        ("write", {"path": "a"}),
        ("edit", {"path": "a", "old_text": "x"}),
        ("ls", {"max_entries": 0}),
        ("grep", {"path": "."}),
        ("bash", {"command": "touch ran", "timeout_ms": 999}),
        ("bash", {"command": "touch ran", "timeout_ms": 600_001}),
        ("bash", {"command": "touch ran", "more": 1}),
    ]
    calls = [FakeToolCall(name, arguments) for name, arguments in bad]
    async with scene(tmp_path, Turn(tool_calls=calls), Turn(text="ok")) as here:
        await here.run()
        results = [text for role, text in here.shown() if role == "tool"]
        assert len(results) == len(bad)
        assert all(text.startswith("Invalid arguments for tool") for text in results)
        assert os.listdir(here.cwd) == []


async def test_changes_of_one_answer_happen_in_its_order(tmp_path: Path) -> None:
    calls = [
        FakeToolCall("write", {"path": "a", "content": "one"}),
        FakeToolCall("bash", {"command": "cat a"}),
        FakeToolCall("edit", {"path": "a", "old_text": "one", "new_text": "two"}),
        FakeToolCall("read", {"path": "a"}),
    ]
    async with scene(tmp_path, Turn(tool_calls=calls), Turn(text="ok")) as here:
        await here.run()
        results = [text for role, text in here.shown() if role == "tool"]
        assert (results[1], results[3]) == ("one", "1: two")


@pytest.mark.behaviour("coding_agent.4")
async def test_thinking_is_shown_as_an_action_and_never_as_text(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(thinking="secret plan", text="answer")) as here:
        live = await here.run()
        assert live.deltas == ["answer"]
        assert [(a.action.kind, a.phase) for a in live.actions] == [
            ("reasoning", "started"),
            ("reasoning", "completed"),
        ]
        assert live.actions[-1].action.title == "secret plan"
        assert live.completed.answer == "answer"


async def test_an_unknown_model_is_an_error_that_lists_what_is_known(tmp_path: Path) -> None:
    class Knowing:
        async def choose_model(self, spec: str | None = None) -> ModelChoice:
            raise UnknownModel(str(spec), ["openai:gpt-test"])

    async with scene(tmp_path) as here:
        here.runtime.service(services).models = cast(Models, Knowing())
        live = await here.run(meta={"model": "nobody:nothing"})
        assert live.messages == [live.completed]
        assert live.completed.error == {
            "code": "unknown_model",
            "message": "unknown model 'nobody:nothing'; known models: openai:gpt-test",
        }
        assert here.session_files == []


async def test_a_named_model_is_asked(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="hi")) as here:
        live = await here.run(meta={"model": "openai:other-model"})
        assert here.server.requests[0].body["model"] == "other-model"
        assert live.started.meta is not None
        assert live.started.meta["model"] == "other-model"


async def test_a_provider_error_has_a_code_and_one_line(tmp_path: Path) -> None:
    refused = HttpError(401, {"error": {"message": "you may not", "type": "auth"}})
    async with scene(tmp_path, Turn(http_error=refused), Turn(text="works")) as here:
        live = await here.run()
        error = live.completed.error
        assert isinstance(error, dict)
        assert error["code"] == "assistant_error"
        assert "you may not" in str(error["message"])
        assert "\n" not in str(error["message"])
        again = await here.run("again", resume=live.completed.resume)
        assert again.completed.answer == "works"


async def test_a_prompt_that_cannot_be_answered_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        live = await here.run("  ")
        assert live.completed.error == {
            "code": "empty_prompt",
            "message": "the prompt is empty: say what is to be done",
        }


async def test_whatever_breaks_ends_the_run_and_is_told(tmp_path: Path) -> None:
    class Broken:
        async def choose_model(self, spec: str | None = None) -> ModelChoice:
            raise RuntimeError("boom")

    async with scene(tmp_path) as here:
        here.runtime.service(services).models = cast(Models, Broken())
        live = await here.run()
        assert live.completed.error == "Session terminated: RuntimeError: boom"


async def test_what_is_no_request_is_refused_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        request: Any = {"prompt": "hi"}
        with pytest.raises(ExecutorError) as caught:
            await here.executor.start_run(request, RunOptions("r", "/"), RunSink())
        assert caught.value.code == "invalid_execution_request"
        here.runtime.service(services).is_up = False
        with pytest.raises(ExecutorError, match=r"coding_agent\.app:component") as caught:
            await here.prepare(here.request())
        assert caught.value.code == "coding_agent_unavailable"


async def test_a_model_without_tools_gets_one_line_and_no_schemas(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="hi")) as here:
        here.runtime.service(services).models = await models_with(
            here, {"tools": False}, notice="answering with a small model"
        )
        live = await here.run("hello")
        ((system, line), user) = here.shown()
        assert (system, user) == ("system", ("user", "hello"))
        assert "\n" not in line
        assert "tools" not in here.server.requests[0].body
        note = Action(id="lemon.model_notice", kind="note", title="answering with a small model")
        assert live.messages[1] == EngineAction(live.handle.run_ref, note, "completed", ok=True)


async def test_the_request_carries_prompt_and_images(tmp_path: Path) -> None:
    images = [Image(data="AAAA", mime_type="image/png")]
    async with scene(tmp_path, Turn(text="seen")) as here:
        live = await here.run(
            "look", images=images, meta={"system_prompt": "Speak French.", "agent_id": "helper"}
        )
        assert live.completed.ok
        request = here.server.requests[0]
        # They are for telemetry, and taken off before the request leaves.
        assert not [name for name in request.headers if name.startswith("x-lemon-")]
        assert here.shown()[0][1].startswith("Speak French.\n\nYou are Lemon")
        assert stored(here)[0]["content"][1] == {
            "type": "image",
            "data": "AAAA",
            "mime_type": "image/png",
        }
        names = [tool["function"]["name"] for tool in request.body["tools"]]
        definitions = here.runtime.service(services).tools.definitions
        own = [definition.name for definition in definitions if definition.name in names]
        assert names == own
        assert {"read", "edit", "patch", "find", "bash", "webfetch"} <= set(names)
