"""Messages, models and options: the vocabulary every provider adapter shares.

JSON dumps of the message models are the transcript shape that other apps store: field and tag
names are fixed. Loading ignores unknown fields. Times are integer milliseconds since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

StopReason = Literal["stop", "length", "tool_use", "error", "aborted", "redirected"]
ThinkingLevel = Literal["minimal", "low", "medium", "high", "xhigh"]
Trust = Literal["trusted", "untrusted"]
ImageMimeType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
InputKind = Literal["text", "image"]
ErrorCategory = Literal[
    "rate_limit", "auth", "client", "context_length", "server", "transient", "unknown"
]


def now_ms() -> int:
    """Wall time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class _Record(BaseModel):
    """A frozen model that drops what it does not know, so that newer transcripts still load."""

    # Validators are built at first use: a start that calls no model does not pay for them.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


# -- content ---------------------------------------------------------------------------------


class TextContent(_Record):
    type: Literal["text"] = "text"
    text: str = ""
    text_signature: str | None = None


class ThinkingContent(_Record):
    """Thinking of a model; `redacted_data` is an opaque block that is replayed unchanged."""

    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    thinking_signature: str | None = None
    redacted_data: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_signature(cls, value: object) -> object:
        if isinstance(value, dict) and "signature" in value and "thinking_signature" not in value:
            return {**value, "thinking_signature": value["signature"]}
        return value


class ImageContent(_Record):
    """An image as base64 without a `data:` prefix."""

    type: Literal["image"] = "image"
    data: str
    mime_type: ImageMimeType = "image/png"

    @field_validator("mime_type", mode="before")
    @classmethod
    def _normalise_jpeg(cls, value: object) -> object:
        return "image/jpeg" if value == "image/jpg" else value


class ToolCall(_Record):
    """A tool call as the model made it.

    `arguments_error` is set when the argument text was not one whole JSON object; `arguments` is
    then empty. Such a call is answered with an error result and never executed.
    """

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    thought_signature: str | None = None
    arguments_error: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_input(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("type") == "tool_use":
            renamed = {**value, "type": "tool_call"}
            renamed.setdefault("arguments", value.get("input") or {})
            return renamed
        return value


UserContent = Annotated[TextContent | ImageContent, Field(discriminator="type")]
ToolResultContent = UserContent
# Not discriminated by tag: the legacy tag `tool_use` has to reach ToolCall's validator.
AssistantContent = TextContent | ThinkingContent | ToolCall

# -- usage -----------------------------------------------------------------------------------


class Cost(_Record):
    """US dollars, by the same buckets as `Usage`."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0
    total: float = 0.0


class Usage(_Record):
    """Tokens in disjoint buckets: `input` excludes what was read from or written to a cache.

    `cost` is None when the model's price is not known.
    """

    input: int = Field(default=0, ge=0)
    output: int = Field(default=0, ge=0)
    cache_read: int = Field(default=0, ge=0)
    cache_write: int = Field(default=0, ge=0)
    total_tokens: int = Field(default=0, ge=0)
    cost: Cost | None = None


# -- errors as data --------------------------------------------------------------------------


class RateLimitInfo(_Record):
    """What a provider said about its limits; `reset_at` in epoch milliseconds."""

    limit: int | None = None
    remaining: int | None = None
    reset_at: int | None = None
    retry_after_ms: int | None = None


class ErrorInfo(_Record):
    """Why a model call failed. `message` is one line for a user and never holds a key."""

    category: ErrorCategory
    message: str
    status: int | None = None
    code: str | None = None
    provider_message: str | None = None
    retryable: bool = False
    rate_limit_info: RateLimitInfo | None = None
    request_id: str | None = None
    # Refused here, before anything went out: no news about the provider or the credential.
    local: bool = False


# -- messages --------------------------------------------------------------------------------


class UserMessage(_Record):
    role: Literal["user"] = "user"
    content: str | list[UserContent]
    timestamp: int = Field(default_factory=now_ms)


class AssistantMessage(_Record):
    """One answer of a model. `usage` is None when the provider reported none."""

    role: Literal["assistant"] = "assistant"
    content: list[AssistantContent] = Field(default_factory=list)
    api: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage | None = None
    stop_reason: StopReason = "stop"
    error_message: str | None = None
    error: ErrorInfo | None = None
    timestamp: int = Field(default_factory=now_ms)


class ToolResultMessage(_Record):
    """The result of one tool call; `details` is for people and logs and never sent to a model."""

    role: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    tool_name: str
    content: list[ToolResultContent] = Field(default_factory=list)
    details: object = None
    trust: Trust = "trusted"
    is_error: bool = False
    timestamp: int = Field(default_factory=now_ms)


Message = UserMessage | AssistantMessage | ToolResultMessage
# For parsing a stored transcript: TypeAdapter(TaggedMessage), list[TaggedMessage], …
TaggedMessage = Annotated[Message, Field(discriminator="role")]

# -- what a call needs -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the model sees it; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Context:
    """What the model is shown: messages are always oldest first.

    Pass the same `tools` tuple in every call of a run: its serialised form is cached by identity.
    """

    system_prompt: str | None = None
    messages: Sequence[Message] = ()
    tools: Sequence[Tool] = ()

    def add_user_message(self, content: str | list[UserContent]) -> Context:
        """A context with this user message at the end."""
        return self._with(UserMessage(content=content))

    def add_assistant_message(self, message: AssistantMessage) -> Context:
        """A context with this answer at the end."""
        return self._with(message)

    def add_tool_result(self, result: ToolResultMessage) -> Context:
        """A context with this tool result at the end."""
        return self._with(result)

    def _with(self, message: Message) -> Context:
        return replace(self, messages=(*self.messages, message))


class LongPromptPrice(_Record):
    """What a prompt above `above_tokens` multiplies the price of the whole request by."""

    above_tokens: int = Field(ge=1)
    input_factor: float = Field(ge=0)
    output_factor: float = Field(ge=0)


class ModelCost(_Record):
    """US dollars per million tokens; `input_factor` of a long prompt counts for the caches too."""

    input: float = Field(default=0.0, ge=0)
    output: float = Field(default=0.0, ge=0)
    cache_read: float = Field(default=0.0, ge=0)
    cache_write: float = Field(default=0.0, ge=0)
    long_prompt: LongPromptPrice | None = None


# How a model is asked to think: Claude by a number of tokens, or by an effort while it decides
# itself; Gemini by a number of tokens, whose range differs by model, or by a level.
ThinkingStyle = Literal[
    "budget",
    "adaptive",
    "gemini_2_5_pro",
    "gemini_2_5_flash",
    "gemini_2_5_flash_lite",
    "gemini_level",
]
# What a model that thinks by default is told when it should not: nothing, that thinking is off,
# that it may think between tool calls only, or, where it cannot be off, to make little effort.
ThinkingWhenOff = Literal["omit", "disabled", "between_tools", "low_effort"]


class Compat(_Record):
    """How a server or a model differs; None means: as detected from provider and host.

    `thinking_when_off`: what a model that thinks by default is told when it should not.
    `thinking_display`: for models that else leave the text of their thinking out.
    `thinking_bound_to_history`: the service takes thinking back only behind the very messages it
    was made after. `beta_features` replaces the list in the beta header. `prompt_cache_ttl`: the
    lifetime asked for where a long one is wanted and the model takes no `prompt_cache_retention`.
    `empty_400`: what a status 400 without a body means.
    `max_request_messages`: only the newest go with a request.
    `requires_thought_signatures`: a step whose first call is unsigned is refused.
    `supports_images_in_results`: of tool calls, where that is not the same everywhere.
    `supports_cache_points`: a place in the prompt can be marked as the end of what is kept.
    """

    supports_store: bool | None = None
    supports_developer_role: bool | None = None
    supports_reasoning_effort: bool | None = None
    supports_reasoning_with_tools: bool | None = None
    supports_usage_in_streaming: bool | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    requires_tool_result_name: bool | None = None
    requires_tools_with_history: bool | None = None
    requires_assistant_after_tool_result: bool | None = None
    requires_thinking_as_text: bool | None = None
    requires_mistral_tool_ids: bool | None = None
    thinking_format: Literal["openai", "zai"] | None = None
    open_router_routing: dict[str, Any] | None = None
    thinking_style: ThinkingStyle | None = None
    thinking_when_off: ThinkingWhenOff | None = None
    thinking_display: Literal["summarized"] | None = None
    thinking_bound_to_history: bool | None = None
    beta_features: tuple[str, ...] | None = None
    prompt_cache_ttl: str | None = None
    empty_400: Literal["client", "context_length", "retry"] | None = None
    max_request_messages: int | None = None
    supports_forced_tool_choice: bool | None = None
    requires_thought_signatures: bool | None = None
    supports_images_in_results: bool | None = None
    supports_cache_points: bool | None = None


class Model(_Record):
    """A model and where it is served.

    `tools=False`: tool schemas are never sent. `cost` None: the price is not known.
    `reasoning_levels`: the efforts the service lists for the model, empty when unknown.
    `sampling`: whether temperature is accepted, for some models only while they do not reason.
    """

    id: str = Field(min_length=1)
    name: str = ""
    api: str
    provider: str
    base_url: str = ""
    reasoning: bool = False
    reasoning_levels: tuple[str, ...] = ()
    sampling: Literal["always", "without_reasoning", "never"] = "always"
    input: tuple[InputKind, ...] = ("text",)
    cost: ModelCost | None = None
    context_window: int = Field(default=8_192, ge=1)
    max_tokens: int = Field(default=4_096, ge=1)
    tools: bool = True
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    compat: Compat | None = None


class StreamOptions(_Record):
    """Settings of one call. Unknown keys are dropped.

    `reasoning`: a level; None and False ask for no thinking, False also where only an explicit
    field switches it off. `thinking_budgets` replaces the tokens of a level. `reasoning_summary`
    is how the Responses API words what the model thought.
    `stream_timeout_ms` limits the whole stream, not one read. A provider's wish for a wait above
    `max_retry_wait_ms` is not slept: the call fails at once. `tool_choice` is `auto`, `any`,
    `none` or a tool's name. `provider_options` is keyed by provider or api id. `project`,
    `location`, `access_token` and `service_account_json` are for Vertex.
    """

    temperature: float | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    api_key: SecretStr | None = None
    session_id: str | None = None
    # Both may hold keys: they stay out of reprs and dumps.
    headers: dict[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    reasoning: ThinkingLevel | Literal[False] | None = None
    thinking_budgets: dict[ThinkingLevel, int] = Field(default_factory=dict)
    reasoning_summary: Literal["auto", "concise", "detailed"] = "auto"
    stream_timeout_ms: int = Field(default=300_000, ge=1)
    max_retry_wait_ms: int = Field(default=60_000, ge=0)
    tool_choice: str | None = None
    service_tier: str | None = None
    project: str | None = None
    location: str | None = None
    access_token: SecretStr | None = None
    service_account_json: SecretStr | None = None
    provider_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, repr=False, exclude=True
    )


# -- readers ---------------------------------------------------------------------------------


def get_text(message: AssistantMessage) -> str:
    """The answer's text blocks, joined."""
    return "".join(block.text for block in message.content if isinstance(block, TextContent))


def get_text_of(message: Message) -> str:
    """The text of a message of any role, blocks joined by line breaks."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(b.text for b in message.content if isinstance(b, TextContent))


def get_thinking(message: AssistantMessage) -> str:
    """The answer's thinking blocks, joined."""
    return "".join(
        block.thinking for block in message.content if isinstance(block, ThinkingContent)
    )


def get_tool_calls(message: AssistantMessage) -> list[ToolCall]:
    """The answer's tool calls, in the order the model made them."""
    return [block for block in message.content if isinstance(block, ToolCall)]
