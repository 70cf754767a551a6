"""Which adapter speaks which wire API. Modules are imported when their API is first spoken."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final, cast

from lemon_ai.adapters.base import Adapter

# api id -> module beside this one, class in it
APIS: Final[Mapping[str, tuple[str, str]]] = {
    "anthropic_messages": ("anthropic", "AnthropicAdapter"),
    "openai_completions": ("openai_chat", "OpenAIChatAdapter"),
    "openai_responses": ("openai_responses", "OpenAIResponsesAdapter"),
    "azure_openai_responses": ("openai_responses", "AzureResponsesAdapter"),
    "google_generative_ai": ("google", "GoogleAdapter"),
    "google_vertex": ("google", "VertexAdapter"),
    "bedrock_converse_stream": ("bedrock", "BedrockAdapter"),
}


def builtin_adapter(api: str) -> Adapter | None:
    """A fresh adapter for this wire API, or None when none speaks it."""
    row = APIS.get(api)
    if row is None:
        return None
    module, name = row
    return cast("Adapter", getattr(import_module(f"lemon_ai.adapters.{module}"), name)())
