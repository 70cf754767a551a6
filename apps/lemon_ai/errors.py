"""Errors of model calls: exceptions, and the decisions callers take from an `ErrorInfo`.

A provider's failure is data (`ErrorInfo` on the message) until somebody asks for a result; then it
is a ModelError. Nothing in here raises while judging an error.
"""

from __future__ import annotations

from typing import Literal, Protocol

from lemon_ai.overflow import is_overflow_text
from lemon_ai.retry_hints import default_delay_ms
from lemon_ai.types import AssistantMessage, ErrorInfo, Model, RateLimitInfo

FailoverAction = Literal["next_credential", "next_provider", "compact", "fail"]


class AIError(Exception):
    """Base of everything this package raises on purpose."""

    code = "ai_error"

    def info(self) -> ErrorInfo:
        """As the error of a call."""
        return error_of_text(str(self) or type(self).__name__)


class UnknownApiError(AIError):
    """No adapter speaks the wire API that the model names."""

    code = "unknown_api"

    def __init__(self, api: str, known: list[str]) -> None:
        super().__init__(f"no adapter speaks the api {api!r}; known: {', '.join(sorted(known))}")
        self.api = api


class ModelError(AIError):
    """The stream ended in an error; `message` holds what arrived and `message.error` says why."""

    code = "model_error"

    def __init__(self, message: AssistantMessage) -> None:
        super().__init__(message.error_message or "the model call failed")
        self.message = message

    def info(self) -> ErrorInfo:
        """Why the stream ended."""
        return error_info(self.message)


class ModelCanceled(ModelError):
    """The stream was cancelled, by its consumer or by its time limit (`reason` `timeout`)."""

    code = "model_canceled"

    def __init__(self, message: AssistantMessage, reason: str) -> None:
        super().__init__(message)
        self.args = (f"the model call was cancelled: {reason}",)
        self.reason = reason


class Ending(Protocol):
    """An event that ends a stream, and holds the message as far as it came."""

    @property
    def message(self) -> AssistantMessage:
        """What arrived, with the error."""
        ...


Failure = ErrorInfo | AssistantMessage | BaseException | Ending

_ACTIONS: dict[str, FailoverAction] = {
    "auth": "next_credential",
    "rate_limit": "next_credential",
    "transient": "next_provider",
    "server": "next_provider",
    "unknown": "next_provider",
    "context_length": "compact",
    "client": "fail",
}


def error_info(failure: Failure) -> ErrorInfo:
    """The ErrorInfo of an error in any form."""
    if isinstance(failure, ErrorInfo):
        return failure
    if isinstance(failure, AssistantMessage):
        if failure.error is not None:
            return failure.error
        return error_of_text(failure.error_message or "the model call failed")
    if isinstance(failure, AIError):
        return failure.info()
    if isinstance(failure, BaseException):
        return error_of_exception(failure)
    return error_info(failure.message)


def error_of_exception(exc: BaseException) -> ErrorInfo:
    """The ErrorInfo of an exception that no adapter translated."""
    return error_of_text(str(exc) or type(exc).__name__)


def error_of_text(text: str) -> ErrorInfo:
    """The ErrorInfo of an error that is only known as text."""
    from lemon_ai.error_parsing import classify

    category = classify(None, None, text)
    return ErrorInfo(category=category, message=text, retryable=category in RETRYABLE)


def protocol_error(text: str, code: str = "protocol_error") -> ErrorInfo:
    """The ErrorInfo of a stream that broke the wire's rules; another try may do better."""
    return ErrorInfo(category="transient", code=code, message=text, retryable=True)


RETRYABLE = frozenset({"rate_limit", "transient", "server"})


def failover_action(failure: Failure) -> FailoverAction:
    """What a caller with more credentials or providers does next."""
    return _ACTIONS[error_info(failure).category]


def is_retryable(failure: Failure) -> bool:
    """Whether the same call may succeed later."""
    return error_info(failure).retryable


def is_auth_error(failure: Failure) -> bool:
    """Whether the key was missing or refused."""
    return error_info(failure).category == "auth"


def is_rate_limit_error(failure: Failure) -> bool:
    """Whether the provider asked for a slower pace."""
    return error_info(failure).category == "rate_limit"


def is_context_overflow(failure: Failure, model: Model | None = None) -> bool:
    """Whether the request was too long, also when the server cut it without an error.

    With `model`, a finished answer counts whose input is above the window, or that stopped for
    length with no output while its input fills 99 % of the window.
    """
    if not isinstance(failure, ErrorInfo | AssistantMessage | BaseException):
        failure = failure.message
    if isinstance(failure, AssistantMessage) and failure.stop_reason in ("stop", "length"):
        return model is not None and _silent_overflow(failure, model)
    info = error_info(failure)
    if info.category == "context_length":
        return True
    text = info.provider_message or info.message
    return info.category != "rate_limit" and is_overflow_text(text, info.code, info.status)


def _silent_overflow(message: AssistantMessage, model: Model) -> bool:
    if message.usage is None:
        return False
    seen = message.usage.input + message.usage.cache_read
    if seen > model.context_window:
        return True
    nothing_said = message.stop_reason == "length" and message.usage.output == 0
    return nothing_said and seen >= model.context_window * 0.99


def suggested_retry_delay_ms(failure: Failure) -> int | None:
    """How long to wait before another try: the provider's hint, else a default; None: never."""
    info = error_info(failure)
    if info.rate_limit_info is not None and info.rate_limit_info.retry_after_ms is not None:
        return info.rate_limit_info.retry_after_ms
    return default_delay_ms(info) if info.retryable else None


def format_rate_limit_info(info: RateLimitInfo) -> str:
    """The limits in one phrase, empty when nothing is known."""
    parts = []
    if info.remaining is not None and info.limit is not None:
        parts.append(f"{info.remaining} of {info.limit} left")
    if info.retry_after_ms is not None:
        parts.append(f"try again in {info.retry_after_ms / 1000:g} s")
    return ", ".join(parts)


def format_error(failure: Failure) -> str:
    """One line for a user: what failed, and how long to wait when the provider said so."""
    info = error_info(failure)
    limits = format_rate_limit_info(info.rate_limit_info) if info.rate_limit_info else ""
    return f"{info.message} ({limits})" if limits else info.message


def redact(text: str, *secrets: str | None) -> str:
    """The text with every given secret replaced."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[REDACTED]")
    return text
