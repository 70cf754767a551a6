"""The component in a real runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from coding_agent import model_info
from coding_agent.executor import Executor
from coding_agent.model_info import DefaultModelInfo
from coding_agent.services import Models, services
from coding_agent.tests.extension_files import write_extension
from coding_agent.tests.scene import Scene, tool_turn
from lemon_agent.runtime import ModelChoice, NoModel
from lemon_ai.testing import FakeChatServer, Turn, scripted_model
from lemon_core.boot import boot
from lemon_core.bridges import MODEL_INFO
from lemon_core.config.trust import TrustedProjects
from lemon_core.profiles import Profile
from lemon_core.testing import scrubbed_environ, temp_home

pytestmark = pytest.mark.anyio

PROFILE = Profile(
    name="test",
    components=("lemon_agent.app:component", "coding_agent.app:component"),
    executor="coding_agent.executor:Executor",
)


async def test_the_component_declares_tools_and_names_the_model(tmp_path: Path) -> None:
    with temp_home() as paths, anyio.fail_after(10):
        async with FakeChatServer(models=["served"]) as server:
            environ = scrubbed_environ(paths.home, {"OPENAI_BASE_URL": server.base_url})
            async with boot(
                PROFILE, cwd=tmp_path, environ=environ, paths=paths, serve=False
            ) as runtime:
                assert "dangerous" in runtime.tool_classes.classes("bash")
                info = runtime.capabilities.get(MODEL_INFO)
                assert isinstance(info, DefaultModelInfo)
                assert await info.describe_default() == "openai:served"
                executor = runtime.load_executor()
                assert executor is Executor
                shared = runtime.service(services)
                ups = [shared.is_up]
                assert shared.settings.agent_dir == paths.state_dir / "agent"
            assert [*ups, shared.is_up] == [True, False]
            assert runtime.capabilities.get(MODEL_INFO) is None


async def test_extensions_and_trust_in_a_real_runtime(tmp_path: Path) -> None:
    """From the configuration file to the model's tools, with `lemon config trust` in between."""
    cwd = tmp_path.resolve()
    tool = "def tools(self, cwd):\n    return [ExtensionTool(made(self.name + '_tool', 'hi'))]"
    with temp_home() as paths, anyio.fail_after(20):
        write_extension(paths.home / "ext", "mine", tool)
        write_extension(cwd / ".lemon" / "extensions", "theirs", tool)
        paths.state_dir.mkdir(parents=True)
        (paths.state_dir / "config.toml").write_text(
            "[runtime]\nextension_paths = ['~/ext']\n[runtime.extensions]\n"
            "auto_load_default_paths = true\n"
        )
        turns = (tool_turn("mine_tool"), Turn(text="a"), tool_turn("theirs_tool"), Turn(text="b"))
        async with FakeChatServer(turns, models=["served"]) as server:
            environ = scrubbed_environ(paths.home, {"OPENAI_BASE_URL": server.base_url})
            async with boot(PROFILE, cwd=cwd, environ=environ, paths=paths, serve=False) as runtime:
                executor = Executor(runtime)
                shown = Scene(server, executor, cast(Any, runtime), cwd, paths.agent_dir(environ))
                await shown.run()
                assert shown.shown()[-1] == ("tool", "hi")
                names = [t["function"]["name"] for t in server.requests[-1].body["tools"]]
                assert names[-1] == "mine_tool"
                TrustedProjects(paths).trust(cwd)
                await shown.run()
                assert shown.shown()[-1] == ("tool", "hi")


class Choosing:
    def __init__(self, answer: ModelChoice | Exception | None) -> None:
        self.answer = answer

    async def choose_model(self, spec: str | None = None) -> ModelChoice:
        if self.answer is None:
            await anyio.sleep_forever()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


LOCAL = scripted_model("smollm2-135m-instruct").model_copy(update={"provider": "local"})


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (ModelChoice(scripted_model("m")), "scripted:m"),
        (ModelChoice(scripted_model("m"), "no key for x"), "scripted:m (no key for x)"),
        (
            ModelChoice(LOCAL, "no provider configured"),
            "local:smollm2-135m-instruct (embedded; set OPENAI_API_KEY for a larger one)",
        ),
        (NoModel(), "none yet: no model can answer"),
        (RuntimeError("odd"), "none yet: RuntimeError: odd"),
        (None, "not known yet: the configured server has not said which models it has"),
    ],
)
async def test_the_default_model_is_told_in_one_line_whatever_happens(
    answer: ModelChoice | Exception | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_info, "TIMEOUT_S", 0.1)
    info = DefaultModelInfo(cast(Models, Choosing(answer)))
    with anyio.fail_after(5):
        told = await info.describe_default()
    assert told.startswith(line)
    assert "\n" not in told
