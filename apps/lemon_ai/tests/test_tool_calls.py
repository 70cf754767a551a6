"""Chat completions: tool-call deltas in every shape servers send them."""

from __future__ import annotations

import pytest

from lemon_ai import ToolCall, get_tool_calls
from lemon_ai.tests.support import delta, parse_answer, wire


def calls(*deltas: list[dict[str, object]]) -> list[ToolCall]:
    """The calls made of these `tool_calls` lists, one chunk each."""
    chunks = [delta(tool_calls=entries) for entries in deltas]
    _, terminal = parse_answer([wire(*chunks, delta("tool_calls"))])
    return get_tool_calls(terminal.message)


def entry(
    index: object = None, call_id: str | None = None, name: str | None = None, arguments: str = ""
) -> dict[str, object]:
    function: dict[str, object] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    made: dict[str, object] = {"function": function}
    if index is not None:
        made["index"] = index
    if call_id is not None:
        made["id"] = call_id
    return made


@pytest.mark.behaviour("lemon_ai.5")
def test_missing_double_and_fragmented_ids() -> None:
    assert calls([entry(0, None, "ls", "{}")])[0].id == "call_stream_0"
    double = calls([entry(0, "same", "ls", "{}"), entry(1, "same", "cat", "{}")])
    assert [call.id for call in double] == ["same", "same_2"]
    pieces = calls([entry(0, "call_", "ls")], [entry(0, "abc", None, "{}")])
    assert [call.id for call in pieces] == ["call_abc"]
    repeated = calls([entry(0, "c", "ls", '{"a"')], [entry(0, "c", "ls", ": 1}")])
    assert repeated == [ToolCall(id="c", name="ls", arguments={"a": 1})]


@pytest.mark.behaviour("lemon_ai.5")
def test_missing_repeated_and_fragmented_names() -> None:
    assert calls([entry(0, "c", "", "{}")])[0].name == "unknown_tool"
    assert calls([entry(0, "c", "read"), entry(0, "c", "_file", "{}")])[0].name == "read_file"
    assert calls([entry(0, "c", "read"), entry(0, "c", "read", "{}")])[0].name == "read"
    assert calls([entry(0, "c", "re"), entry(0, "c", "read", "{}")])[0].name == "read"
    late = calls([entry(0, "c", None, "{")], [entry(0, "c", "read", "}")])
    assert late == [ToolCall(id="c", name="read")]


def test_the_index_may_be_a_numeric_string() -> None:
    made = calls([entry("0", "a", "ls")], [entry("1", "b", "cat")], [entry("0", None, None, "{}")])
    assert [call.name for call in made] == ["ls", "cat"]


def test_calls_without_an_index_are_told_apart_by_id() -> None:
    made = calls(
        [entry(None, "a", "ls", "{}"), entry(None, "b", "cat", '{"x"')],
        [entry(None, "b", None, ": 1}")],
    )
    assert [(call.id, call.arguments) for call in made] == [("a", {}), ("b", {"x": 1})]


def test_whole_calls_without_index_and_id_stay_apart() -> None:
    made = calls([entry(None, None, "ls", "{}"), entry(None, None, "cat", "{}")])
    assert [(call.id, call.name) for call in made] == [
        ("call_stream_0", "ls"),
        ("call_stream_1", "cat"),
    ]


def test_several_whole_calls_under_one_index_stay_apart() -> None:
    made = calls([entry(0, "a", "ls", '{"x": 1}')], [entry(0, "b", "cat", "{}")])
    assert [(call.id, call.name) for call in made] == [("a", "ls"), ("b", "cat")]


def test_arguments_as_an_object_are_taken_too() -> None:
    made = entry(0, "a", "ls")
    made["function"] = {"name": "ls", "arguments": {"path": "x"}}
    assert calls([made])[0].arguments == {"path": "x"}


@pytest.mark.parametrize("raw", ["", "   ", "null"])
def test_no_arguments_are_an_empty_object(raw: str) -> None:
    assert calls([entry(0, "a", "ls", raw)]) == [ToolCall(id="a", name="ls")]


@pytest.mark.parametrize("raw", ["[1]", '"text"', "1", '{"a": 1} trailing', "{'a': 1}"])
def test_arguments_that_are_no_object_are_an_error_and_never_guessed(raw: str) -> None:
    (call,) = calls([entry(0, "a", "ls", raw)])
    assert call.arguments == {}
    assert call.arguments_error is not None
