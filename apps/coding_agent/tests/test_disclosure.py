"""Too many tools for the prompt (specification coding_agent 6 and 11.23)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from coding_agent.disclosure import SchemaSizes, disclosed
from coding_agent.tests.extension_files import write_extension
from coding_agent.tests.scene import Scene, scene, text_of
from lemon_agent import AbortSignal, AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_ai.testing import FakeToolCall, Turn
from lemon_core.config.model import LemonConfig
from lemon_core.config.tools import Disclosure
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def tool(name: str, description: str, parameters: dict[str, Any] | None = None) -> AgentTool:
    async def execute(call: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text(f"{name} {call.params}")

    return AgentTool(name, description, parameters or {"type": "object"}, execute)


TOOLS = [
    tool("read", "Read a file."),
    tool("weather_forecast", "Tell the weather of a city.", CITY),
    tool("weather_alert", "Tell of storms."),
    tool("translate", "Put a text into another language, weather reports too."),
]
FOREIGN = frozenset({"weather_forecast", "weather_alert", "translate"})


def shown(
    policy: Mapping[str, object] | None = None,
    *,
    deferrable: Collection[str] = FOREIGN,
    **settings: Any,
) -> dict[str, AgentTool]:
    given = Disclosure.model_validate({"budget_tokens": 10, **settings})
    rules = ToolPolicy.parse(policy or {})
    found = disclosed(TOOLS, deferrable, rules, given, SchemaSizes())
    return {each.name: each for each in found}


async def call(tools: Mapping[str, AgentTool], called: str, /, **params: Any) -> str:
    context = ToolCallContext("c", params, AbortSignal(), lambda _: None)
    return (await tools[called].execute(context)).text


def invoking(name: str) -> Turn:
    call = FakeToolCall("tool_invoke", {"name": name, "args": {}})
    return Turn(tool_calls=[call])


@pytest.mark.behaviour("coding_agent.23")
def test_under_the_budget_and_switched_off_everything_is_shown() -> None:
    everything = [each.name for each in TOOLS]
    assert list(shown(budget_tokens=40_000)) == everything
    assert list(shown(enabled=False)) == everything
    assert list(shown(deferrable=())) == everything


@pytest.mark.behaviour("coding_agent.23")
def test_over_the_budget_two_tools_stand_for_those_of_elsewhere() -> None:
    tools = shown()
    assert list(tools) == ["read", "tool_search", "tool_invoke"]
    assert "weather_forecast: Tell the weather of a city." in tools["tool_search"].description
    named = shown(catalog_tokens=20)["tool_search"].description
    assert named == "Find more tools.\nweather_forecast, weather_alert, translate"
    assert shown(catalog_tokens=0)["tool_search"].description == "Find more tools. There are 3."
    assert list(shown({"deny": ["tool_invoke"]})) == ["read", "tool_search"]
    assert list(shown({"allow": ["read", "translate"]}))[-1] == "tool_invoke"


async def test_a_search_puts_names_before_descriptions_and_selects_schemas() -> None:
    tools = shown()
    found = await call(tools, "tool_search", query="weather")
    assert found.splitlines() == [
        "weather_forecast(city, days?): Tell the weather of a city.",
        "weather_alert(): Tell of storms.",
        "translate(): Put a text into another language, weather reports too.",
    ]
    alone = await call(tools, "tool_search", query="weather", limit=1)
    assert alone.startswith("weather_forecast")
    assert "\n" not in alone
    assert await call(tools, "tool_search", query="zebra") == "Nothing fits. There are 3 tools."
    selected = await call(tools, "tool_search", query="select:weather_forecast, weather_foo")
    whole, unknown = selected.split("\n\n")
    assert json.loads(whole)["parameters"] == CITY
    assert unknown.startswith("There is no tool 'weather_foo'. Did you mean: weather_")


@pytest.mark.behaviour("coding_agent.23")
async def test_arguments_are_checked_against_the_real_schema() -> None:
    tools = shown()
    said = await call(
        tools, "tool_invoke", name="weather_forecast", args={"city": "Graz", "days": "3"}
    )
    assert said == "weather_forecast {'city': 'Graz', 'days': 3}"
    with pytest.raises(ToolError, match="Invalid arguments for weather_forecast") as refused:
        await call(tools, "tool_invoke", name="weather_forecast", args={"days": 1})
    assert json.loads(str(refused.value).partition("\n")[2])["parameters"] == CITY
    with pytest.raises(ToolError, match="Did you mean: translate"):
        await call(tools, "tool_invoke", name="translat", args={})
    for bridge in ("tool_invoke", "tool_search"):
        with pytest.raises(ToolError, match="cannot be called this way"):
            await call(tools, "tool_invoke", name=bridge, args={})


def with_budget(here: Scene, tokens: int) -> None:
    config: LemonConfig = here.runtime.config
    tools = config.runtime.tools.model_copy(update={"disclosure": Disclosure(budget_tokens=tokens)})
    runtime = config.runtime.model_copy(
        update={"tools": tools, "extension_paths": (str(here.cwd.parent / "ext"),)}
    )
    here.runtime.config = config.model_copy(update={"runtime": runtime})


@pytest.mark.behaviour("coding_agent.23")
async def test_what_a_policy_denies_is_in_no_catalogue(tmp_path: Path) -> None:
    """And the calls of the others go through the policy's approvals."""
    body = """
def tools(self, cwd):
    return [made("alpha", "first"), made("beta", "second"), made("tool_search", "mine")]
"""
    write_extension(tmp_path / "ext", "two", body)
    turns = (
        invoking("beta"),
        invoking("alpha"),
        Turn(text="x"),
    )
    async with scene(tmp_path, *turns) as here:
        with_budget(here, 100)
        policy = ToolPolicy.parse({"deny": ["beta"], "require_approval": ["alpha"]})
        await here.run(policy=policy)
        sent = [each["function"] for each in here.server.requests[0].body["tools"]]
        listed = {each["name"]: each for each in sent}
        assert list(listed)[-2:] == ["tool_search", "tool_invoke"]
        assert {"alpha", "beta"}.isdisjoint(listed)
        assert "alpha" in listed["tool_search"]["description"]
        assert "beta" not in listed["tool_search"]["description"]
        refused, asked = (
            text_of(message["content"])
            for message in here.server.requests[-1].body["messages"]
            if message["role"] == "tool"
        )
        assert refused == "There is no tool 'beta'."
        assert "nobody can be asked in this run" in asked
