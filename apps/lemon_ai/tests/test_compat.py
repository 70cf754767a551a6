"""Dialects of chat-completions servers, and the reasoning table."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import pytest

from lemon_ai import Compat, StreamOptions
from lemon_ai.compat import Dialect, dialect_of
from lemon_ai.tests.support import HELLO, LS, chat_model, request_body
from lemon_ai.types import ThinkingLevel


def dialect(base_url: str, compat: Compat | None = None) -> Dialect:
    return dialect_of(chat_model(base_url, compat=compat), base_url)


def test_the_vendor_takes_everything() -> None:
    assert dialect("https://api.openai.com/v1") == Dialect()


def test_a_model_may_answer_every_question_itself() -> None:
    assert set(Compat.model_fields) == {field.name for field in fields(Dialect)}


@pytest.mark.parametrize("provider", ["mistral", "kimi"])
def test_a_vendors_name_counts_where_the_host_says_nothing(provider: str) -> None:
    behind_a_proxy = chat_model("https://proxy.example/v1", provider=provider)
    at_home = chat_model(f"https://api.{provider}.ai/v1".replace("kimi.ai", "moonshot.ai"))
    found = dialect_of(behind_a_proxy, behind_a_proxy.base_url)
    assert found == dialect_of(at_home, at_home.base_url)
    assert found != dialect("https://proxy.example/v1")
    vendor = chat_model("https://api.openai.com/v1", provider=provider)
    assert dialect_of(vendor, vendor.base_url) == Dialect()


OTHER_HOSTS = """
    api.cerebras.ai api.x.ai api.mistral.ai llm.chutes.ai api.deepseek.com opencode.ai api.z.ai
    127.0.0.1:8080 localhost:1234 proxy.example
"""


@pytest.mark.parametrize("host", OTHER_HOSTS.split())
def test_store_and_developer_role_are_for_the_vendor_only(host: str) -> None:
    found = dialect(f"https://{host}/v1")
    assert not found.supports_store
    assert not found.supports_developer_role


@pytest.mark.parametrize(
    ("host", "field"),
    [
        ("api.openai.com", "max_completion_tokens"),
        ("api.deepseek.com", "max_completion_tokens"),
        ("api.mistral.ai", "max_tokens"),
        ("llm.chutes.ai", "max_tokens"),
        ("127.0.0.1:8080", "max_tokens"),
    ],
)
def test_the_name_of_the_token_limit(host: str, field: str) -> None:
    assert dialect(f"https://{host}/v1").max_tokens_field == field


def test_a_host_that_only_ends_alike_is_unknown() -> None:
    assert dialect("https://evilapi.openai.com.example/v1") == dialect("https://x.example/v1")


def test_the_models_own_answers_win() -> None:
    found = dialect("http://127.0.0.1/v1", Compat(supports_store=True, max_tokens_field=None))
    assert found.supports_store
    assert found.max_tokens_field == "max_tokens"


def reasoning_of(
    level: ThinkingLevel | Literal[False] | None,
    *,
    base_url: str = "https://api.openai.com/v1",
    levels: tuple[str, ...] = (),
    reasoning: bool = True,
    tools: bool = False,
    compat: Compat | None = None,
) -> dict[str, object]:
    model = chat_model(base_url, reasoning=reasoning, reasoning_levels=levels, compat=compat)
    body = request_body(
        HELLO.messages,
        model=model,
        tools=[LS] if tools else [],
        options=StreamOptions(reasoning=level),
    )
    return {name: body[name] for name in ("reasoning_effort", "thinking") if name in body}


LISTED = ("none", "low", "medium", "high")


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize(
    ("level", "listed", "expected"),
    [
        (None, LISTED, {}),
        (False, LISTED, {"reasoning_effort": "none"}),
        (False, ("low", "high"), {}),
        (False, (), {}),
        ("minimal", (), {"reasoning_effort": "minimal"}),
        ("low", (), {"reasoning_effort": "low"}),
        ("medium", LISTED, {"reasoning_effort": "medium"}),
        ("high", LISTED, {"reasoning_effort": "high"}),
        ("xhigh", (*LISTED, "xhigh"), {"reasoning_effort": "xhigh"}),
        ("minimal", LISTED, {"reasoning_effort": "low"}),
        ("xhigh", LISTED, {"reasoning_effort": "high"}),
    ],
)
def test_openai_reasoning_rows(
    level: ThinkingLevel | Literal[False] | None,
    listed: tuple[str, ...],
    expected: dict[str, object],
) -> None:
    assert reasoning_of(level, levels=listed) == expected


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (None, {}),
        (False, {"thinking": {"type": "disabled"}}),
        ("minimal", {"thinking": {"type": "enabled"}}),
        ("xhigh", {"thinking": {"type": "enabled"}}),
    ],
)
def test_zai_reasoning_rows(
    level: ThinkingLevel | Literal[False] | None, expected: dict[str, object]
) -> None:
    assert reasoning_of(level, base_url="https://api.z.ai/api/paas/v4") == expected


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize("level", ["minimal", "high", False, None])
@pytest.mark.parametrize("base_url", ["https://api.openai.com/v1", "https://api.z.ai/v4"])
def test_a_model_that_does_not_reason_gets_no_field(
    level: ThinkingLevel | Literal[False] | None, base_url: str
) -> None:
    assert reasoning_of(level, base_url=base_url, levels=LISTED, reasoning=False) == {}


def test_servers_without_the_field_do_not_get_it() -> None:
    assert reasoning_of("high", base_url="https://api.x.ai/v1") == {}


@pytest.mark.parametrize("level", ["high", False, None])
def test_models_that_refuse_reasoning_beside_tools_are_told_none(
    level: ThinkingLevel | Literal[False] | None,
) -> None:
    """OpenAI's newer models answer 400 to tools on this API unless the effort is `none`."""
    compat = Compat(supports_reasoning_with_tools=False)
    assert reasoning_of(level, compat=compat, tools=True) == {"reasoning_effort": "none"}
    if level == "high":
        assert reasoning_of(level, compat=compat) == {"reasoning_effort": "high"}
