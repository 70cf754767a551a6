"""Error classification and what callers decide from it."""

from __future__ import annotations

import pytest

from lemon_ai import AssistantMessage, ErrorInfo, ModelError, Usage, format_error, is_retryable
from lemon_ai.error_parsing import classify, parse_http_error, parse_stream_error
from lemon_ai.errors import (
    error_info,
    failover_action,
    is_auth_error,
    is_context_overflow,
    is_rate_limit_error,
    suggested_retry_delay_ms,
)
from lemon_ai.events import StreamDone, StreamError
from lemon_ai.overflow import CODES
from lemon_ai.tests.support import chat_model
from lemon_ai.text import dump_json


def http_error(status: int, body: object = b"", headers: dict[str, str] | None = None) -> ErrorInfo:
    raw = body if isinstance(body, bytes) else dump_json(body)
    return parse_http_error(status, raw, headers or {}, now_ms=1_000_000)


@pytest.mark.parametrize(
    ("status", "text", "category"),
    [
        (401, "no", "auth"),
        (403, "no", "auth"),
        (429, "no", "rate_limit"),
        (400, "Rate limit reached", "rate_limit"),
        (503, "ThrottlingException", "rate_limit"),
        (None, "too_many_requests", "rate_limit"),
        (None, "RESOURCE_EXHAUSTED", "rate_limit"),
        (500, "The server is overloaded", "transient"),
        (None, "Service unavailable", "transient"),
        (400, "bad field", "client"),
        (404, "no such model", "client"),
        (502, "", "transient"),
        (504, "", "transient"),
        (522, "", "transient"),
        (529, "", "transient"),
        (500, "", "server"),
        (501, "", "server"),
        (None, "HTTP 503 from upstream", "transient"),
        (None, "something odd", "unknown"),
        (401, "prompt is too long", "context_length"),
    ],
)
def test_classification(status: int | None, text: str, category: str) -> None:
    assert classify(status, None, text) == category


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": {"message": "m", "type": "bad_request"}}, "bad_request: m"),
        ({"error": {"message": "m", "type": None, "code": "c"}}, "c: m"),
        ({"error": "invalid_grant", "error_description": "m"}, "m"),
        ({"error": "only this"}, "only this"),
        ({"error": {"errors": [{"message": "a"}, {"message": "b"}]}}, "a; b"),
        ({"detail": [{"msg": "field required"}]}, "field required"),
        ({"errors": [{"detail": "d"}, {"title": "t"}]}, "d; t"),
        ({"__type": "X", "Message": "m"}, "m"),
        ({"error": {"details": "deep"}}, "deep"),
        ({"message": "m"}, "m"),
        ([{"error": {"message": "m", "status": "INVALID_ARGUMENT"}}], "m"),
        ({"error": "invalid_grant", "message": "m"}, "m"),
        ({"error": "e", "detail": "m"}, "m"),
        ({"error": "e", "description": "m"}, "m"),
        ({"error": {"message": "bad_request: m", "type": "bad_request"}}, "bad_request: m"),
        ({"error": {"details": {"message": "deep"}}}, "deep"),
        ({"__type": "ThrottlingException", "message": "m"}, "m"),
        ({"detail": "m"}, "m"),
        (b"<html> plain\n text", "<html> plain text"),
        (b"x" * 500, "x" * 200),
    ],
)
def test_the_providers_own_words_are_found(body: object, text: str) -> None:
    assert http_error(400, body).provider_message == text


def test_a_whole_error() -> None:
    body = {"error": {"message": "Slow\ndown", "type": "requests", "code": "rate_limit_exceeded"}}
    headers = {
        "retry-after": "2",
        "x-request-id": "req_1",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
    }
    info = http_error(429, body, headers)
    assert info.message == "rate limited (HTTP 429): requests: Slow down"
    assert (info.code, info.request_id, info.retryable) == ("rate_limit_exceeded", "req_1", True)
    assert info.rate_limit_info is not None
    assert info.rate_limit_info.model_dump() == {
        "limit": 60,
        "remaining": 0,
        "reset_at": 1_002_000,
        "retry_after_ms": 2_000,
    }
    assert format_error(info).endswith("(0 of 60 left, try again in 2 s)")


@pytest.mark.parametrize(
    ("headers", "request_id"),
    [
        ({"request-id": "r"}, "r"),
        ({"x-amzn-requestid": "r"}, "r"),
        ({"apim-request-id": "r"}, "r"),
        ({}, "inside"),
    ],
)
def test_the_id_to_name_in_a_support_request(headers: dict[str, str], request_id: str) -> None:
    info = http_error(500, {"error": {"message": "m"}, "request_id": "inside"}, headers)
    assert info.request_id == request_id


def test_googles_word_for_the_error_is_its_code() -> None:
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota"}}
    info = http_error(429, body)
    assert (info.code, info.category) == ("RESOURCE_EXHAUSTED", "rate_limit")


def test_no_answer_makes_the_reader_raise() -> None:
    for body in (b"[]", b"[1]", b"null", b"\xff\xfe", b'{"error": []}', b'{"error": {"code": {}}}'):
        for hint in ("inf", "nan", "1e400", "-5", "later"):
            headers = {"retry-after": hint, "ratelimit-reset": hint}
            assert parse_http_error(500, body, headers, now_ms=0).category == "server"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 524, 529])
def test_statuses_that_may_be_tried_again(status: int) -> None:
    assert is_retryable(http_error(status))


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422, 501])
def test_statuses_that_stay_as_they_are(status: int) -> None:
    assert not is_retryable(http_error(status))


def test_an_error_event_has_the_status_it_names() -> None:
    info = parse_stream_error({"error": {"message": "m", "code": "429"}})
    assert (info.status, info.category, info.code) == (429, "rate_limit", None)
    info = parse_stream_error({"error": {"message": "m", "type": "server_error", "status": 503}})
    assert (info.status, info.category, info.code) == (503, "transient", "server_error")
    assert parse_stream_error({"error": True}).message


@pytest.mark.parametrize(
    ("category", "action"),
    [
        ("auth", "next_credential"),
        ("rate_limit", "next_credential"),
        ("transient", "next_provider"),
        ("server", "next_provider"),
        ("unknown", "next_provider"),
        ("context_length", "compact"),
        ("client", "fail"),
    ],
)
def test_failover_actions(category: str, action: str) -> None:
    info = ErrorInfo.model_validate({"category": category, "message": "m"})
    assert failover_action(info) == action


def test_every_form_of_an_error_is_accepted() -> None:
    info = http_error(401, {"error": {"message": "bad key"}})
    message = AssistantMessage(stop_reason="error", error=info, error_message=info.message)
    for failure in (info, message, ModelError(message), StreamError("error", message)):
        assert error_info(failure) == info
        assert is_auth_error(failure)
        assert format_error(failure) == "authentication failed (HTTP 401): bad key"
    assert is_rate_limit_error(RuntimeError("HTTP 429"))
    assert error_info(RuntimeError()).message == "RuntimeError"
    assert error_info(AssistantMessage(stop_reason="error")).category == "unknown"


@pytest.mark.parametrize(
    ("info", "delay_ms"),
    [
        (http_error(429), 60_000),
        (http_error(503), 5_000),
        (http_error(504), 10_000),
        (http_error(429, headers={"retry-after": "7"}), 7_000),
        (http_error(400), None),
        (http_error(502), 5_000),
        (ErrorInfo(category="transient", code="timeout", message="m", retryable=True), 5_000),
        (ErrorInfo(category="transient", code="circuit_open", message="m", retryable=True), 30_000),
        (
            ErrorInfo(category="transient", code="connection_refused", message="m", retryable=True),
            10_000,
        ),
    ],
)
def test_suggested_delays(info: ErrorInfo, delay_ms: int | None) -> None:
    assert suggested_retry_delay_ms(info) == delay_ms


# One real sentence per row of the overflow table.
OVERFLOWS = {
    "anthropic prompt": (400, "prompt is too long: 210000 tokens > 200000 maximum"),
    "anthropic limit": (400, "input length and `max_tokens` exceed context limit: 190000 + 20000"),
    "anthropic size": (413, "request_too_large: Request exceeds the maximum size"),
    "bedrock": (400, "Input is too long for requested model."),
    "openai": (400, "Your input exceeds the context window of this model."),
    "google": (400, "The input token count (1200000) exceeds the maximum number of tokens"),
    "xai": (400, "This model's maximum prompt length is 131072 but the request contains 200000"),
    "groq": (400, "Please reduce the length of the messages or completion."),
    "openrouter": (400, "This endpoint's maximum context length is 128000 tokens."),
    "llama.cpp": (400, "the request exceeds the available context size, try increasing it"),
    "lm studio": (400, "the number of tokens is greater than the context length"),
    "ollama": (400, "prompt too long; exceeded max context length by 4 tokens"),
    "mistral": (400, "Prompt is too large for model with 32768 maximum context length"),
    "qwen": (400, "Range of input length should be [1, 30720]"),
    "minimax": (400, "invalid params, context window exceeds limit (2013)"),
    "kimi": (400, "Your request exceeded model token limit: 131072"),
    "vague length": (400, "context_length is 4096"),
    "vague tokens": (422, "too many tokens in the request"),
    "vague limit": (413, "over the token limit"),
    "vague maximum": (400, "input exceeds maximum"),
}


@pytest.mark.behaviour("lemon_ai.9")
@pytest.mark.parametrize("source", OVERFLOWS)
def test_every_overflow_text_is_recognised(source: str) -> None:
    status, text = OVERFLOWS[source]
    info = http_error(status, {"error": {"message": text}})
    assert is_context_overflow(info)
    assert info.category == "context_length"
    assert failover_action(info) == "compact"


@pytest.mark.behaviour("lemon_ai.9")
@pytest.mark.parametrize("code", sorted(CODES))
def test_every_overflow_code_is_recognised(code: str) -> None:
    assert is_context_overflow(http_error(400, {"error": {"message": "no", "code": code}}))


@pytest.mark.behaviour("lemon_ai.9")
@pytest.mark.parametrize(
    ("status", "text"),
    [
        (429, "Limit 30000 tokens per minute, requested 40000 tokens: too many tokens"),
        (429, "Rate limit reached for gpt on tokens per minute (TPM)"),
        (429, "Too many tokens, please wait before trying again."),
        (400, "Too many tokens, please wait before trying again."),
        (500, "context_length"),
        (None, "the token limit of your plan"),
        (400, "bad field"),
    ],
)
def test_limits_over_time_and_other_errors_are_no_overflow(status: int | None, text: str) -> None:
    info = ErrorInfo(
        category=classify(status, None, text), status=status, message=text, provider_message=text
    )
    assert not is_context_overflow(info)


@pytest.mark.behaviour("lemon_ai.9")
def test_a_request_cut_without_an_error_is_seen_from_usage() -> None:
    model = chat_model(context_window=1000)

    def finished(stop: str, **usage: int) -> AssistantMessage:
        return AssistantMessage.model_validate({"stop_reason": stop, "usage": usage})

    assert is_context_overflow(finished("stop", input=900, cache_read=101), model)
    assert is_context_overflow(StreamDone("stop", finished("stop", input=1001)), model)
    assert not is_context_overflow(finished("stop", input=900, cache_read=100), model)
    assert is_context_overflow(finished("length", input=990), model)
    assert not is_context_overflow(finished("length", input=990, output=5), model)
    assert not is_context_overflow(finished("length", input=989), model)
    assert not is_context_overflow(finished("stop", input=5000))
    assert not is_context_overflow(AssistantMessage(usage=None), model)
    assert not is_context_overflow(AssistantMessage(usage=Usage()), model)


def test_a_413_without_a_text_is_an_overflow() -> None:
    assert is_context_overflow(http_error(413))
