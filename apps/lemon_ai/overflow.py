"""How providers say that a request is too long for the model."""

from __future__ import annotations

import re

CODES = frozenset(
    {
        "context_length_exceeded",
        "max_tokens_exceeded",
        "token_limit_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
    }
)

# (server, phrase of its error text)
PATTERNS: tuple[tuple[str, str], ...] = (
    ("anthropic", r"prompt is too long"),
    ("anthropic", r"exceed context limit"),
    ("anthropic", r"request_too_large"),
    ("bedrock", r"input is too long for requested model"),
    ("openai", r"exceeds the context window"),
    ("google", r"input token count.*exceeds the maximum"),
    ("xai", r"maximum prompt length is \d+"),
    ("groq", r"reduce the length of the messages"),
    ("openrouter, vllm", r"maximum context length is \d+"),
    ("llama.cpp", r"exceeds the available context size"),
    ("lm studio", r"greater than the context length"),
    ("ollama", r"prompt too long; exceeded (?:max )?context length"),
    ("mistral", r"too large for model with \d+ maximum context length"),
    ("qwen", r"range of input length should be"),
    ("minimax", r"context window exceeds limit"),
    ("kimi", r"exceeded model token limit"),
)
_SURE = re.compile("|".join(phrase for _, phrase in PATTERNS), re.IGNORECASE | re.DOTALL)
# Too vague alone: believed only with a status that says the request was at fault.
_VAGUE = re.compile(r"context[_ ]length|too many tokens|token limit|exceeds maximum", re.IGNORECASE)
_VAGUE_STATUSES = frozenset({400, 413, 422})
# Limits over time use the same words and are no overflow.
_RATE = re.compile(r"tokens? per (?:minute|hour|day)|please wait|rate limit", re.IGNORECASE)


def is_overflow_text(text: str, code: str | None, status: int | None) -> bool:
    """Whether an error with this text, code and HTTP status means: the request is too long."""
    if code is not None and code.lower() in CODES:
        return True
    if _RATE.search(text):
        return False
    if _SURE.search(text):
        return True
    return status in _VAGUE_STATUSES and _VAGUE.search(text) is not None
