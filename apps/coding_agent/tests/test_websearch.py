"""`websearch` against a server on loopback (specification coding_agent 7)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from coding_agent.tests.harness import call
from coding_agent.tests.web_server import Site, serving, web_env
from coding_agent.tools.toolset import ToolEnv
from coding_agent.tools.websearch import WEBSEARCH
from lemon_agent import ToolError
from lemon_agent.external_content import BEGIN
from lemon_core.clock import Clock
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

ROWS = [
    {"title": f"T{n}", "url": f"http://x/{n}", "description": "a <strong>b</strong>", "age": "1d"}
    for n in range(12)
]
ANSWER = {"choices": [{"message": {"content": "because"}}], "citations": ["http://c/"] * 20}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as served:
        served.pages["/search"] = {"web": {"results": ROWS}}
        served.pages["/chat/completions"] = ANSWER
        yield served


def env_of(
    folder: Path, site: Site, *keys: str, clock: Clock | None = None, **search: Any
) -> ToolEnv:
    settings = {"search": {"perplexity": {"base_url": site.url("")}, **search}}
    secrets = {key: f"value of {key}" for key in keys}
    return web_env(folder, settings, secrets=secrets, brave_url=site.url("/search"), clock=clock)


async def searched(env: ToolEnv, query: str = "why", **params: Any) -> dict[str, Any]:
    result = await call(WEBSEARCH, env, query=query, **params)
    assert result.trust == "untrusted"
    found: dict[str, Any] = json.loads(result.text)
    return found


async def test_results_of_brave_are_wrapped_and_bounded(tmp_path: Path, site: Site) -> None:
    env = env_of(tmp_path, site, "BRAVE_API_KEY")
    found = await searched(env, count=3, country="DE", search_lang="de", freshness="pw")
    assert (found["provider"], found["count"]) == ("brave", 3)
    first = found["results"][0]
    assert first["title"].count(BEGIN) == first["description"].count(BEGIN) == 1
    assert "a b" in first["description"]
    assert (first["url"], first["age"]) == ("http://x/0", "1d")
    assert found["trustMetadata"]["source"] == "web_search"
    path, headers, query, _ = site.requests[0]
    assert headers["X-Subscription-Token"] == "value of BRAVE_API_KEY"
    assert (path, query) == (
        "/search",
        {"q": "why", "count": "3", "country": "DE", "search_lang": "de", "freshness": "pw"},
    )
    assert (await searched(env, count=99))["count"] == 10
    assert (await searched(env))["count"] == 5


async def test_perplexity_answers_with_citations(tmp_path: Path, site: Site) -> None:
    env = env_of(tmp_path, site, "PERPLEXITY_API_KEY", provider="perplexity")
    found = await searched(env)
    assert "because" in found["content"]
    assert found["content"].count(BEGIN) == 1
    assert len(found["citations"]) == 8
    assert site.requests[0][3]["model"] == "sonar-pro"
    through = env_of(tmp_path, site, "OPENROUTER_API_KEY", provider="perplexity")
    await searched(through)
    assert site.requests[1][3]["model"] == "perplexity/sonar-pro"


@pytest.mark.parametrize("provider", ["brave", "perplexity"])
async def test_a_missing_key_is_a_result(tmp_path: Path, site: Site, provider: str) -> None:
    found = await searched(env_of(tmp_path, site, provider=provider))
    assert found["error"] == f"missing_{provider}_api_key"
    assert "API_KEY" in found["message"]


async def test_the_other_provider_is_asked_when_one_fails(tmp_path: Path, site: Site) -> None:
    del site.pages["/search"]
    both = ("BRAVE_API_KEY", "PERPLEXITY_API_KEY")
    found = await searched(env_of(tmp_path, site, *both))
    assert found["provider"] == "perplexity"
    assert found["failover"] == {
        "attempted": True,
        "used": True,
        "from": "brave",
        "to": "perplexity",
        "reason": f"{site.url('/search')} answered 404",
    }
    keyless = await searched(env_of(tmp_path, site, "PERPLEXITY_API_KEY"))
    assert "needs a key" in keyless["failover"]["reason"]
    for env in (
        env_of(tmp_path, site, "BRAVE_API_KEY"),
        env_of(tmp_path, site, *both, failover={"enabled": False}),
    ):
        with pytest.raises(ToolError, match="answered 404"):
            await call(WEBSEARCH, env, query="why")


async def test_a_search_that_makes_no_sense_is_refused(tmp_path: Path, site: Site) -> None:
    env = env_of(tmp_path, site, "BRAVE_API_KEY")
    for params, problem in [
        ({"query": " "}, "query needs 1 to 500"),
        ({"query": "x" * 501}, "query needs 1 to 500"),
        ({"query": "x", "freshness": "soon"}, "freshness is pd"),
    ]:
        with pytest.raises(ToolError, match=problem):
            await call(WEBSEARCH, env, **params)
    site.pages["/search"] = {"web": "no"}
    with pytest.raises(ToolError, match="no list of results"):
        await call(WEBSEARCH, env, query="x")


async def test_a_search_is_kept_and_the_next_one_waits_its_turn(tmp_path: Path, site: Site) -> None:
    clock = FakeClock()
    env = env_of(tmp_path, site, "BRAVE_API_KEY", clock=clock)
    await searched(env)
    assert (await searched(env))["cached"] is True
    assert len(site.requests) == 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(searched, env, "other")
        with anyio.fail_after(5):
            await clock.wait_for_sleepers()
        assert len(site.requests) == 1
        await clock.advance(200)
    assert len(site.requests) == 2
