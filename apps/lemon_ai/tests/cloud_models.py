"""Models of Gemini and on Bedrock that several tests share."""

from __future__ import annotations

from typing import Any

from lemon_ai import Model
from lemon_ai.types import ThinkingStyle

GEMINI_3 = {"requires_thought_signatures": True, "supports_images_in_results": True}


def gemini(style: ThinkingStyle = "gemini_level", **changes: Any) -> Model:
    """A model at AI Studio; with levels it is one of Gemini 3 and later."""
    fields = {
        "id": "gemini",
        "api": "google_generative_ai",
        "provider": "google",
        "reasoning": True,
        "input": ("text", "image"),
        "context_window": 1_000_000,
        "max_tokens": 64_000,
        "compat": {"thinking_style": style, **(GEMINI_3 if style == "gemini_level" else {})},
    }
    return Model.model_validate({**fields, **changes})


def bedrock(compat: dict[str, Any] | None = None, **changes: Any) -> Model:
    """A model on Bedrock; with a style of thinking it is Claude."""
    fields = {
        "id": "model",
        "api": "bedrock_converse_stream",
        "provider": "amazon_bedrock",
        "reasoning": True,
        "input": ("text", "image"),
        "context_window": 200_000,
        "max_tokens": 60_000,
        "compat": compat,
    }
    return Model.model_validate({**fields, **changes})


BUDGET = {"thinking_style": "budget"}
CLAUDE = bedrock(BUDGET)
