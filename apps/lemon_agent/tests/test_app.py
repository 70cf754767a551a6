"""The component and the service of a runtime, with a stand-in that has the runtime's attributes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from lemon_agent.app import component
from lemon_agent.runtime import ModelRuntime, model_runtime
from lemon_ai.testing import FakeChatServer
from lemon_core.capabilities import TEST_CREDENTIAL_ENV_VARS, Capabilities
from lemon_core.config import LemonConfig
from lemon_core.config.contributed import Contributed
from lemon_core.config.declarations import open_env
from lemon_core.config.model import Provider
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.telemetry import Telemetry
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


class FakeRuntime(SimpleNamespace):
    """Settings and the one service that is asked for."""

    made: ModelRuntime | None = None

    def service(self, make: Any) -> Any:
        if self.made is None:
            self.made = make(self)
        return self.made


async def test_the_component_closes_the_models_of_its_runtime(tmp_path: Path) -> None:
    closed: list[ModelRuntime] = []

    class Watched(ModelRuntime):
        async def aclose(self) -> None:
            closed.append(self)
            await super().aclose()

    with anyio.fail_after(5):
        async with FakeChatServer(models=["m1"]) as server:
            providers = {"box": Provider(base_url=server.base_url)}
            runtime: Any = FakeRuntime(
                config=LemonConfig(providers=providers),
                environ={},
                clock=FakeClock(),
                telemetry=Telemetry(),
                secrets=None,
                capabilities=Capabilities(),
                cwd=tmp_path,
                paths=PathSettings(tmp_path),
            )
            models = runtime.service(model_runtime)
            models.__class__ = Watched
            async with component(runtime):
                assert closed == []
                assert (await models.choose_model()).spec == "box:m1"
                names = runtime.capabilities.contributions(TEST_CREDENTIAL_ENV_VARS)
                assert {"OPENAI_API_KEY", "GEMINI_API_KEY"} < set(names)
                declared = Contributed.of(Profile("test"), runtime.capabilities)
                env = open_env({"CHATGPT_TOKEN": "canary"}, declared.all_declarations())
                assert env.get("models.chatgpt_token") == "canary"
                assert "canary" not in repr(env.snapshot())
            assert closed == [models]
