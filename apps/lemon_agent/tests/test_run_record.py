import pytest

from lemon_agent import (
    AbortSignal,
    AgentContext,
    AgentEnd,
    AgentEvent,
    LoopConfig,
    RunFailed,
    TurnStart,
)
from lemon_agent.run_record import RunRecord, normal_name
from lemon_agent.tests.harness import user
from lemon_ai import Client
from lemon_ai.testing import scripted_model


def record(seen: list[AgentEvent]) -> RunRecord:
    config = LoopConfig(model=scripted_model(), stream_fn=Client().stream)
    context = AgentContext(messages=[user("old")])
    return RunRecord.begin(context, config, AbortSignal(), seen.append)


def test_nothing_follows_the_first_terminal_event() -> None:
    seen: list[AgentEvent] = []
    run = record(seen)
    run.emit(TurnStart())
    run.finish(AgentEnd(()))
    run.finish(RunFailed("loop_crashed", "too late"))
    run.emit(TurnStart())
    assert seen == [TurnStart(), AgentEnd(())]


def test_a_message_is_kept_in_the_history_and_in_the_context_unless_told_otherwise() -> None:
    run = record([])
    run.add(user("a"))
    run.keep(user("b"), in_context=False)
    assert [m.content for m in run.new_messages] == ["a", "b"]  # type: ignore[attr-defined]
    assert [m.content for m in run.messages] == ["old", "a"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("written", ["read file", " read  file ", "read\u00a0\tfile\n"])
def test_white_space_of_a_name_is_trimmed_and_collapsed(written: str) -> None:
    assert normal_name(written) == "read file"
