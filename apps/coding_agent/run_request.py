"""What a request says about its run, where it takes a look at more than one field."""

from __future__ import annotations

from lemon_agent.tool_registry import SessionScope
from lemon_core import session_key as session_keys
from lemon_core.runs import DEFAULT_AGENT
from lemon_gateway.requests import ExecutionRequest


def agent_id(request: ExecutionRequest) -> str:
    """Which agent runs: as the request says, else as its session key does."""
    named = request.meta_text("agent_id")
    return named.strip() if named else session_keys.agent_id(request.session_key) or DEFAULT_AGENT


def session_scope(request: ExecutionRequest) -> SessionScope:
    """Whether the run works for the user or for another run of this app."""
    return "subagent" if request.lane == "subagent" else "main"


def is_strangers(request: ExecutionRequest) -> bool:
    """Whether strangers wrote the prompt and read the answer: the owner's notes stay out then."""
    return request.execution_context.provenance.origin == "webhook"
