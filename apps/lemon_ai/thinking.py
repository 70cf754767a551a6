"""How much a model is asked to think, as tables: what each API takes for each level.

A model with `reasoning=False` is never asked. Which table counts for a model is catalogue data
(`Compat.thinking_style`, `Model.reasoning_levels`), never its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lemon_ai.compat import Dialect
from lemon_ai.types import Model, StreamOptions, ThinkingLevel

# Tokens of thinking by level, one row per kind of service.
BUDGETS: Final[Mapping[str, Mapping[ThinkingLevel, int]]] = {
    "anthropic": {
        "minimal": 1_024,
        "low": 4_096,
        "medium": 10_000,
        "high": 32_000,
        "xhigh": 64_000,
    },
    "bedrock": {
        "minimal": 1_024,
        "low": 2_048,
        "medium": 8_192,
        "high": 16_384,
        "xhigh": 16_384,
    },
    "gemini_2_5_pro": {
        "minimal": 128,
        "low": 2_048,
        "medium": 8_192,
        "high": 32_768,
        "xhigh": 32_768,
    },
    "gemini_2_5_flash": {
        "minimal": 128,
        "low": 2_048,
        "medium": 8_192,
        "high": 24_576,
        "xhigh": 24_576,
    },
    # It refuses less than 512.
    "gemini_2_5_flash_lite": {
        "minimal": 512,
        "low": 2_048,
        "medium": 8_192,
        "high": 24_576,
        "xhigh": 24_576,
    },
}
# Efforts by level in order of preference: the first one that the model lists counts.
EFFORTS: Final[Mapping[str, Mapping[ThinkingLevel, tuple[str, ...]]]] = {
    "openai": {
        "minimal": ("minimal", "low"),
        "low": ("low",),
        "medium": ("medium",),
        "high": ("high",),
        "xhigh": ("xhigh", "high"),
    },
    "anthropic": {
        "minimal": ("low",),
        "low": ("low",),
        "medium": ("medium",),
        "high": ("high",),
        "xhigh": ("xhigh", "max", "high"),
    },
    "gemini": {
        "minimal": ("minimal", "low"),
        "low": ("low",),
        "medium": ("medium", "high"),
        "high": ("high",),
        "xhigh": ("xhigh", "high"),
    },
}
ANSWER_TOKENS: Final = 4_096  # room for the answer beside a budget of thinking
BINDING_CONTROLS: Final = "thinking-binding-controls-2026-08-01"
MIN_BUDGET_TOKENS: Final = 1_024  # the service refuses less


def budget_of(table: str, level: ThinkingLevel, options: StreamOptions) -> int:
    """Tokens of thinking for this level; the caller's own number wins."""
    return options.thinking_budgets.get(level, BUDGETS[table][level])


def effort_of(table: str, level: ThinkingLevel, listed: tuple[str, ...]) -> str:
    """The effort for this level that the model lists; the level's own where it lists nothing."""
    choices = EFFORTS[table][level]
    if not listed:
        return choices[0]
    return next((choice for choice in choices if choice in listed), listed[-1])


# -- OpenAI: chat completions and Responses ----------------------------------------------------


def openai_effort(model: Model, level: ThinkingLevel | Literal[False] | None) -> str | None:
    """The effort to ask for, or None for no field."""
    if not model.reasoning or level is None:
        return None
    if level is False:
        return "none" if "none" in model.reasoning_levels else None
    return effort_of("openai", level, model.reasoning_levels)


def chat_thinking(
    model: Model,
    dialect: Dialect,
    level: ThinkingLevel | Literal[False] | None,
    *,
    with_tools: bool,
) -> dict[str, object]:
    """The fields of a chat-completions request that ask for this amount of thinking."""
    if model.reasoning and with_tools and not dialect.supports_reasoning_with_tools:
        return {"reasoning_effort": "none"}  # anything else, absence included, is refused
    if not model.reasoning or level is None:
        return {}
    if dialect.thinking_format == "zai":
        return {"thinking": {"type": "enabled" if level else "disabled"}}
    effort = openai_effort(model, level) if dialect.supports_reasoning_effort else None
    return {} if effort is None else {"reasoning_effort": effort}


def sampling_fields(model: Model, options: StreamOptions, effort: object) -> dict[str, object]:
    """The temperature, unless the service answers 400 to it; some do so while the model reasons."""
    if options.temperature is None or model.sampling == "never":
        return {}
    if model.sampling == "without_reasoning" and effort != "none":
        return {}
    return {"temperature": options.temperature}


# -- Claude, at Anthropic and elsewhere --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaudeThinking:
    """`fields` of the request; `is_on` forbids a forced tool choice; `temperature` None: none.

    `keeps_history`: whether stored thinking goes along; `betas` are features that `fields` need.
    """

    fields: Mapping[str, Any]
    max_tokens: int
    temperature: float | None
    is_on: bool
    keeps_history: bool = True
    betas: tuple[str, ...] = ()


def claude_thinking(
    model: Model,
    dialect: Dialect,
    options: StreamOptions,
    max_tokens: int,
    *,
    table: str = "anthropic",
) -> ClaudeThinking:
    """What a Claude model is asked for; `table` is the row of BUDGETS."""
    temperature = None if model.sampling == "never" else options.temperature
    level = options.reasoning
    if not model.reasoning:
        return ClaudeThinking({}, max_tokens, temperature, is_on=False)
    if not level:
        return _claude_off(dialect, max_tokens, temperature)
    if dialect.thinking_style == "adaptive":
        effort = effort_of("anthropic", level, model.reasoning_levels)
        return _claude_adaptive(dialect, effort, max_tokens)
    return _claude_budget(model, budget_of(table, level, options), max_tokens, temperature)


def _claude_adaptive(dialect: Dialect, effort: str, max_tokens: int) -> ClaudeThinking:
    thinking: dict[str, Any] = {"type": "adaptive"}
    betas: tuple[str, ...] = ()
    if dialect.thinking_display is not None:
        thinking["display"] = dialect.thinking_display
    if dialect.thinking_bound_to_history:
        # A compacted conversation or a changed prompt would be refused for good: have the
        # thinking that does not fit any more left out instead.
        thinking["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
        betas = (BINDING_CONTROLS,)
    fields = {"thinking": thinking, "output_config": {"effort": effort}}
    return ClaudeThinking(fields, max_tokens, None, is_on=True, betas=betas)


def _claude_off(dialect: Dialect, max_tokens: int, temperature: float | None) -> ClaudeThinking:
    """Nothing, but for models that think unless they are told otherwise."""
    fields: dict[str, Any] = {}
    match dialect.thinking_when_off:
        case "disabled" | "between_tools":
            fields = {"thinking": {"type": dialect.thinking_when_off}}
        case "low_effort" if dialect.thinking_bound_to_history:
            return _claude_adaptive(
                dialect, "low", max_tokens
            )  # as if left out, but for the binding
        case "low_effort":
            fields = {"output_config": {"effort": "low"}}
            return ClaudeThinking(fields, max_tokens, temperature, is_on=True)
        case "omit":
            pass
    # Without adaptive thinking the service cannot be told to leave out what does not fit.
    keeps = not dialect.thinking_bound_to_history
    return ClaudeThinking(fields, max_tokens, temperature, is_on=False, keeps_history=keeps)


def _claude_budget(
    model: Model, budget: int, max_tokens: int, temperature: float | None
) -> ClaudeThinking:
    longest = max(model.max_tokens, max_tokens)
    total = min(max(max_tokens, budget + ANSWER_TOKENS), longest)
    budget = min(budget, total - ANSWER_TOKENS)
    if budget < MIN_BUDGET_TOKENS:  # the model is too small to think and answer
        return ClaudeThinking({}, max_tokens, temperature, is_on=False)
    fields = {"thinking": {"type": "enabled", "budget_tokens": budget}}
    # The service takes no other temperature while the model thinks.
    only = None if model.sampling == "never" else 1.0
    return ClaudeThinking(fields, total, only, is_on=True)


# -- Claude on Bedrock -------------------------------------------------------------------------


def adjust_max_tokens_for_thinking(
    base: int,
    model_max: int,
    level: ThinkingLevel,
    custom: Mapping[ThinkingLevel, int] | None = None,
) -> tuple[int, int]:
    """The limit of an answer with its thinking, and the budget of the thinking.

    The budget comes on top of `base` as far as the model goes; where it would leave nothing to
    answer with, it shrinks.
    """
    budget = (custom or {}).get(level, BUDGETS["bedrock"][level])
    total = min(base + budget, model_max)
    if total <= budget:
        budget = max(0, total - MIN_BUDGET_TOKENS)
    return total, budget


def bedrock_thinking(
    model: Model, dialect: Dialect, options: StreamOptions, max_tokens: int
) -> ClaudeThinking:
    """What a Claude model on Bedrock is asked for."""
    level = options.reasoning
    if not model.reasoning or not level or dialect.thinking_style != "budget":
        return claude_thinking(model, dialect, options, max_tokens)
    total, budget = adjust_max_tokens_for_thinking(
        max_tokens, model.max_tokens, level, options.thinking_budgets
    )
    if budget < MIN_BUDGET_TOKENS:  # the model is too small to think and answer
        return claude_thinking(
            model, dialect, options.model_copy(update={"reasoning": None}), max_tokens
        )
    fields = {"thinking": {"type": "enabled", "budget_tokens": budget}}
    only = None if model.sampling == "never" else 1.0
    return ClaudeThinking(fields, total, only, is_on=True)


# -- Gemini ------------------------------------------------------------------------------------


def gemini_thinking(model: Model, dialect: Dialect, options: StreamOptions) -> dict[str, Any]:
    """The `thinkingConfig` of a request; empty for none.

    Models that take levels cannot be kept from thinking; of those with a budget some can.
    """
    level = options.reasoning
    if not model.reasoning or level is None:
        return {}
    style = dialect.thinking_style
    if level is False:
        return {"thinkingBudget": 0} if style in _CAN_BE_OFF else {}
    if style in BUDGETS:
        return {"includeThoughts": True, "thinkingBudget": budget_of(style, level, options)}
    effort = effort_of("gemini", level, model.reasoning_levels)
    return {"includeThoughts": True, "thinkingLevel": effort.upper()}


_CAN_BE_OFF = frozenset({"gemini_2_5_flash", "gemini_2_5_flash_lite"})
