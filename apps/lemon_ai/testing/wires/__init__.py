"""The wire APIs that the fake server speaks, one module each."""

from __future__ import annotations

from collections.abc import Mapping

from lemon_ai.testing.wires import anthropic, bedrock, google, openai_chat, openai_responses
from lemon_ai.testing.wires.base import Rendered, Wire

WIRES: Mapping[str, Wire] = {
    wire.api: wire
    for wire in (
        openai_chat.WIRE,
        openai_responses.WIRE,
        openai_responses.AZURE_WIRE,
        anthropic.WIRE,
        google.WIRE,
        google.VERTEX_WIRE,
        bedrock.WIRE,
    )
}

__all__ = ["WIRES", "Rendered", "Wire"]
