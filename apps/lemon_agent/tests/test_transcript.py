import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_agent import AgentMessage, InvalidTranscript, Violation, validate_transcript
from lemon_agent.tests.harness import user
from lemon_ai import AssistantMessage, TextContent, ToolCall, ToolResultMessage


def answer(*ids: str) -> AssistantMessage:
    return AssistantMessage(
        content=[TextContent(text="so"), *(ToolCall(id=call, name="t") for call in ids)]
    )


def result(call: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call, tool_name="t")


def test_calls_with_their_results_right_behind_them_are_fine() -> None:
    assert validate_transcript([]) == []
    assert validate_transcript([user(), answer()]) == []
    assert validate_transcript([user(), answer("a", "b"), result("b"), result("a"), answer()]) == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([result("a")], Violation("orphan_tool_result", 0, ("a",))),
        (
            [answer("a"), result("a"), user(), result("a")],
            Violation("orphan_tool_result", 3, ("a",)),
        ),
        ([answer(" "), result(" ")], Violation("invalid_tool_call_id", 0, (" ",))),
        ([answer("a", "a"), result("a")], Violation("duplicate_tool_call_id", 0, ("a",))),
        ([user(), answer("a", "b"), result("a")], Violation("missing_tool_result", 1, ("b",))),
        ([answer("a"), user(), answer()], Violation("missing_tool_result", 0, ("a",))),
        ([answer("a"), result("a"), result("x")], Violation("unexpected_tool_result", 2, ("x",))),
        ([answer("a"), result("a"), result("a")], Violation("duplicate_tool_result", 2, ("a",))),
    ],
)
def test_each_way_to_break_the_rule_is_named(
    messages: list[AgentMessage], expected: Violation
) -> None:
    """Specification lemon_agent 4, the transcript rule."""
    assert validate_transcript(messages) == [expected]
    assert expected.code in str(InvalidTranscript([expected]))


GROUPS = st.lists(st.lists(st.sampled_from("abcd"), max_size=3, unique=True), max_size=4)


@settings(deadline=None)
@given(GROUPS, st.data())
def test_a_sound_transcript_passes_and_any_missing_result_is_found(
    groups: list[list[str]], data: st.DataObject
) -> None:
    messages: list[AgentMessage] = []
    for ids in groups:
        order = data.draw(st.permutations(ids))
        messages += [user(), answer(*ids), *map(result, order)]
    assert validate_transcript(messages) == []
    positions = [i for i, m in enumerate(messages) if isinstance(m, ToolResultMessage)]
    if positions:
        del messages[data.draw(st.sampled_from(positions))]
        assert [v.code for v in validate_transcript(messages)] == ["missing_tool_result"]
