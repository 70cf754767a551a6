"""The seam through which the gateway lends tools to a run (specification lemon_gateway 9)."""

from __future__ import annotations

from collections.abc import Iterable

from lemon_agent import AgentTool, AgentToolResult
from lemon_core.execution_context import ExecutionContext
from lemon_gateway.tests.fakes import SESSION, context
from lemon_gateway.tools import GatewayTools


def tool(name: str, label: str = "") -> AgentTool:
    async def execute(*_: object) -> AgentToolResult:
        return AgentToolResult.of_text(name)

    return AgentTool(name, "", {}, execute, label)


def test_a_session_gets_what_the_sources_have_for_it() -> None:
    """In the order of offering; a failing source takes only its own tools away."""
    asked: list[tuple[str, str]] = []

    def inbox(session_key: str, run: ExecutionContext) -> Iterable[AgentTool]:
        asked.append((session_key, run.run_id))
        return [tool("sms_list_messages")] if session_key == SESSION else []

    def broken(session_key: str, run: ExecutionContext) -> Iterable[AgentTool]:
        yield tool("half")
        raise RuntimeError("no inbox")

    tools = GatewayTools()
    run = context("run_1")
    assert tools.for_session(SESSION, run) == []
    tools.offer("inbox", inbox)
    tools.offer("broken", broken)
    tools.offer("late", lambda _, __: [tool("cron"), tool("sms_list_messages", "second")])
    lent = tools.for_session(SESSION, run)
    assert [(each.name, each.label) for each in lent] == [("sms_list_messages", ""), ("cron", "")]
    assert [each.name for each in tools.for_session("agent:a:main", run)] == [
        "cron",
        "sms_list_messages",
    ]
    assert asked == [(SESSION, "run_1"), ("agent:a:main", "run_1")]
    tools.withdraw("late")
    tools.withdraw("late")
    assert [each.name for each in tools.for_session(SESSION, run)] == ["sms_list_messages"]
