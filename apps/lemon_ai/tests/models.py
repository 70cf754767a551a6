"""Models of the wire APIs, for tests that need no catalogue."""

from __future__ import annotations

from typing import Any

from lemon_ai import Model


def claude(base_url: str = "https://api.anthropic.com", **changes: Any) -> Model:
    """A model that speaks Anthropic's Messages API."""
    return _model("claude", "anthropic_messages", "anthropic", base_url, changes)


def gpt(base_url: str = "https://api.openai.com/v1", **changes: Any) -> Model:
    """A model that speaks the Responses API."""
    return _model("gpt", "openai_responses", "openai", base_url, changes)


def _model(model_id: str, api: str, provider: str, base_url: str, changes: dict[str, Any]) -> Model:
    fields = {
        "id": model_id,
        "api": api,
        "provider": provider,
        "base_url": base_url,
        "input": ("text", "image"),
        "context_window": 200_000,
        "max_tokens": 64_000,
    }
    return Model.model_validate({**fields, **changes})
