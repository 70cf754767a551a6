"""Requests and commands are the same thing in two forms."""

from __future__ import annotations

import copy

from lemon_core.resume import ResumeToken
from lemon_core.runs import ExecutionCommand, Image
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.tests.fakes import command


def full_command() -> ExecutionCommand:
    whole = command(
        "run_1",
        resume=ResumeToken(engine="lemon", value="sess_1"),
        conversation=("resume", "lemon", "sess_1"),
        cwd="/tmp/x",
        meta={"model": " m:1 ", "blank": " ", "nested": {"list": [1, 2]}},
    )
    return whole.model_copy(
        update={
            "images": (Image(data="aGk=", mime_type="image/png"),),
            "lane": "subagent",
            "tool_policy": ToolPolicy.of_profile("read_only"),
        }
    )


def test_a_command_survives_the_round_trip() -> None:
    """Specification lemon_gateway 1.1: from_command and to_command are lossless."""
    whole = full_command()
    request = ExecutionRequest.from_command(whole)
    assert request.to_command() == whole
    assert ExecutionRequest.from_command(request.to_command()) == request


def test_meta_is_the_request_s_own() -> None:
    """Specification lemon_gateway 5.1: the in-process form copies meta deeply."""
    whole = full_command()
    before = copy.deepcopy(whole.meta)
    request = ExecutionRequest.from_command(whole)
    whole.meta["nested"] = "changed by the submitter"
    assert request.meta == before


def test_meta_text_reads_only_text_with_something_in_it() -> None:
    """Specification lemon_gateway 1.1: the meta keys that the gateway reads."""
    request = ExecutionRequest.from_command(full_command())
    assert request.meta_text("model") == " m:1 "
    assert request.meta_text("blank") is None
    assert request.meta_text("nested") is None
    assert request.meta_text("absent") is None
