"""The root of Lemon's error trees, and the one test for a full context window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class LemonError(Exception):
    """Base of every error that Lemon raises on purpose; `code` is the stable word on the wire."""

    code: ClassVar[str] = "error"


# Words by which providers report that a prompt does not fit (specification lemon_gateway 3.8).
_OVERFLOW_MARKERS = (
    "context_length_exceeded",
    "context length exceeded",
    "context window",
    "http 413",
    "payload too large",
    "request entity too large",
    "string too long",
    "maximum length",
    "input[",
    "上下文长度超过限制",
    "令牌数量超出",
    "输入过长",
    "超出最大长度",
    "上下文窗口已满",
)


def error_text(error: object) -> str:
    """The searchable text of a completion's error (a code, a map of parts, or None)."""
    if error is None:
        return ""
    if isinstance(error, Mapping):
        return " ".join(str(part) for part in error.values() if part is not None)
    return str(error)


def is_context_overflow(error: object) -> bool:
    """True when `error` says that the prompt is larger than the model's context window."""
    text = error_text(error).casefold()
    return any(marker in text for marker in _OVERFLOW_MARKERS)
