"""Requests and commands (specification lemon_core 3.2 and 3.3)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lemon_core.resume import ResumeToken
from lemon_core.runs import (
    ExecutionCommand,
    Image,
    InvalidCommand,
    MissingContext,
    MissingConversationKey,
    RunRequest,
    require_context,
    require_conversation_key,
)
from lemon_core.tool_policy import InvalidToolPolicy


@pytest.mark.behaviour("lemon_core.2")
def test_normalize_fills_gaps_and_drops_junk() -> None:
    request = RunRequest.normalize(
        {
            "origin": None,
            "session_key": "agent:coder:main",
            "prompt": None,
            "queue_mode": None,
            "model": "",
            "images": [{"data": "aGk=", "mime_type": "image/png"}, {"data": ""}, 7],
            "resume": "lemon resume abc",
            "meta": [],
            "run_id": "",
            "engine": "other",
        }
    )
    assert request == RunRequest(
        origin="unknown",
        session_key="agent:coder:main",
        agent_id="coder",
        images=(Image(data="aGk=", mime_type="image/png"),),
    )
    assert RunRequest.normalize(request) is request


@pytest.mark.behaviour("lemon_core.2")
def test_normalize_is_idempotent_on_maps() -> None:
    token = ResumeToken(engine="lemon", value="s1")
    once = RunRequest.normalize({"prompt": "hi", "resume": token, "agent_id": "x"})
    assert RunRequest.normalize(dict(once)) == once
    assert once.resume == token


@pytest.mark.behaviour("lemon_core.2")
@pytest.mark.parametrize(
    "bad", [{"prompt": 7}, {"queue_mode": "fifo"}, {"queue_mode": 3}, {"meta": {}, "prompt": ["x"]}]
)
def test_normalize_refuses_a_wrong_prompt_or_queue_mode(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RunRequest.normalize(bad)


@pytest.mark.behaviour("lemon_core.2")
def test_normalize_never_drops_a_malformed_policy() -> None:
    with pytest.raises(InvalidToolPolicy):
        RunRequest.normalize({"prompt": "hi", "tool_policy": {"alow": []}})


@pytest.mark.behaviour("lemon_core.3")
def test_a_command_must_name_its_conversation_and_carry_a_context() -> None:
    command = ExecutionCommand(run_id="run_1", session_key="agent:a:main", prompt="")
    with pytest.raises(MissingConversationKey) as no_key:
        require_conversation_key(command)
    with pytest.raises(MissingContext) as no_context:
        require_context(command)
    assert isinstance(no_key.value, InvalidCommand)
    assert isinstance(no_context.value, InvalidCommand)


@pytest.mark.behaviour("lemon_core.3")
@pytest.mark.parametrize("selector", ["engine", "engine_id", "queue_mode"])
def test_no_contract_accepts_an_engine_selector(selector: str) -> None:
    with pytest.raises(ValidationError):
        ExecutionCommand.model_validate(
            {"run_id": "r", "session_key": "agent:a:main", "prompt": "", selector: "x"}
        )
    assert not hasattr(RunRequest.normalize({"prompt": "", selector: "collect"}), "engine")


def test_the_digest_names_what_the_run_is_and_not_how_it_came() -> None:
    command = ExecutionCommand(
        run_id="run_1",
        session_key="agent:a:main",
        prompt="hi",
        conversation_key=("session", "agent:a:main"),
    )
    assert command.digest() == command.model_copy(update={"meta": {"origin": "cron"}}).digest()
    assert command.digest() != command.model_copy(update={"prompt": "ho"}).digest()
    other = command.model_copy(update={"conversation_key": ("resume", "lemon", "s1")})
    assert command.digest() != other.digest()
