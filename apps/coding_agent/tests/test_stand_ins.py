"""Another provider answers when one does not (specification coding_agent 5 and 11.10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coding_agent.tests.scene import Scene, scene
from lemon_ai.testing import FakeChatServer, HttpError, Turn
from lemon_core.config.model import Defaults, LemonConfig, Provider
from lemon_core.config.provider_routing import ProviderRouting

pytestmark = pytest.mark.anyio

# Not a status that the client itself tries again: the other provider is to answer.
DOWN = Turn(http_error=HttpError(401))


@asynccontextmanager
async def two_providers(folder: Path, *turns: Turn) -> AsyncIterator[tuple[Scene, FakeChatServer]]:
    """A scene whose server is `one`; `two` stands in for it and gives these answers."""
    async with scene(folder) as here, FakeChatServer(turns) as other:
        config: LemonConfig = here.runtime.config
        routing = ProviderRouting(fallback_providers=("two",))
        here.runtime.config = config.model_copy(
            update={
                "defaults": Defaults(provider="one", model="m"),
                "providers": {
                    name: Provider(base_url=server.base_url, api_key="key", models=("m",))
                    for name, server in (("one", here.server), ("two", other))
                },
                "runtime": config.runtime.model_copy(update={"provider_routing": routing}),
            }
        )
        yield here, other


@pytest.mark.behaviour("coding_agent.10")
async def test_a_call_that_fails_before_it_says_anything_goes_on_elsewhere(tmp_path: Path) -> None:
    async with two_providers(tmp_path, Turn(text="from two")) as (here, other):
        here.server.enqueue(DOWN)
        live = await here.run()
        assert (live.completed.ok, live.completed.answer) == (True, "from two")
        assert (len(here.server.requests), len(other.requests)) == (1, 1)


@pytest.mark.behaviour("coding_agent.10")
async def test_a_call_that_fails_after_its_first_word_is_not_made_again(tmp_path: Path) -> None:
    async with two_providers(tmp_path, Turn(text="from two")) as (here, other):
        broken = {"message": "overloaded", "code": 503}
        here.server.enqueue(Turn(text=["half ", "an answer"], stream_error=broken))
        live = await here.run()
        assert not live.completed.ok
        assert live.completed.answer == "half an answer"
        assert (len(here.server.requests), len(other.requests)) == (1, 0)


@pytest.mark.behaviour("coding_agent.10")
async def test_who_answered_leads_when_the_session_goes_on(tmp_path: Path) -> None:
    """The run that continues has a new session object; the pin is by the persisted id."""
    turns = (Turn(text="from two"), Turn(text="two again"))
    async with two_providers(tmp_path, *turns) as (here, other):
        here.server.enqueue(DOWN, Turn(text="one is back"))
        first = await here.run()
        second = await here.run(resume=first.completed.resume)
        assert second.completed.answer == "two again"
        assert (len(here.server.requests), len(other.requests)) == (1, 2)
