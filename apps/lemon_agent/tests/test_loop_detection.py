import pytest

from lemon_agent import AgentToolResult
from lemon_agent.loop_detection import LoopGuard, Verdict
from lemon_ai import ToolCall

FAILED = AgentToolResult.of_text("no such file", is_error=True)
FINE = AgentToolResult.of_text("ok")


def call(name: str = "read", **arguments: object) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=arguments)


def observe(guard: LoopGuard, count: int) -> list[Verdict]:
    return [guard.observe(call(path="a"), FAILED) for _ in range(count)]


def test_the_third_equal_failure_is_warned_and_the_fifth_stops() -> None:
    assert observe(LoopGuard(), 5) == ["ok", "ok", "warn", "ok", "stop"]


@pytest.mark.parametrize(
    ("other", "result"),
    [
        (call(path="b"), FAILED),
        (call("write", path="a"), FAILED),
        (call(path="a"), AgentToolResult.of_text("another error", is_error=True)),
        (call(path="a"), FINE),
        (call("ls"), FINE),
    ],
)
def test_any_other_call_resets(other: ToolCall, result: AgentToolResult) -> None:
    guard = LoopGuard()
    observe(guard, 4)
    guard.observe(other, result)
    assert observe(guard, 2) == ["ok", "ok"]


def test_arguments_are_compared_by_value_and_not_by_order() -> None:
    guard = LoopGuard()
    verdicts = [
        guard.observe(call(a=1, b={"x": 1, "y": 2}), FAILED),
        guard.observe(call(b={"y": 2, "x": 1}, a=1), FAILED),
        guard.observe(call(a=1, b={"x": 1, "y": 2}), FAILED),
    ]
    assert verdicts[-1] == "warn"


def test_arguments_that_are_no_json_still_count() -> None:
    guard = LoopGuard()
    verdicts = [guard.observe(call(a=float("nan")), FAILED) for _ in range(3)]
    assert verdicts[-1] == "warn"
