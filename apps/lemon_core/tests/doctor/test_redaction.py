"""What redaction takes out and what it leaves (specification lemon_core 14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.doctor.redaction import (
    MAX_TEXT,
    REDACTED,
    Redactor,
    is_sensitive,
    redact_text,
    redact_url,
    secrets_in,
)


@pytest.mark.parametrize(
    "key",
    [
        "access_key", "aws_access_key_id", "apiKey", "OPENAI_API_KEY", "Authorization", "bearer",
        "bot-token", "credentials", "LEMON_SECRETS_MASTER_KEY", "oauth_secret", "password",
        "private_key", "client_secret", "session_token", "token", "wallet_key", "key", "cookie",
    ],
)  # fmt: skip
def test_sensitive_keys(key: str) -> None:
    assert is_sensitive(key)


@pytest.mark.parametrize("key", ["model", "path", "auth_source", "session_search", "theme"])
def test_harmless_keys(key: str) -> None:
    assert not is_sensitive(key)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("OPENAI_API_KEY=abc def", f"OPENAI_API_KEY={REDACTED} def"),
        ('api_key = "a b \\" c" rest', f'api_key = "{REDACTED}" rest'),
        ("{'password': 'x y'}", f"{{'password': '{REDACTED}'}}"),
        ('{"bot_token":"12"}', f'{{"bot_token":"{REDACTED}"}}'),
        ("Authorization: Bearer abc.def", f"Authorization: {REDACTED}"),
        ("sent Bearer abcdefgh now", f"sent Bearer {REDACTED} now"),
        ("key sk-abcdefgh1234", f"key {REDACTED}"),
        ("0x" + "aB" * 32, REDACTED),
        ("0x" + "aB" * 20, "0x" + "aB" * 20),
        ("run --token abc now", f"run --token {REDACTED} now"),
        ("see https://u:p@host/v1?key=1#x.", f"see https://{REDACTED}@host/v1?{REDACTED}#{REDACTED}"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----", REDACTED),
        ("nothing to see: model = gpt", "nothing to see: model = gpt"),
    ],
)  # fmt: skip
def test_text(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("postgresql://me:pw@db/lemon", f"postgresql://{REDACTED}@db/lemon"),
        ("https://hooks.test/services/T0AB12CD34EF56GH78/x", f"https://hooks.test/services/{REDACTED}/x"),
    ],
)  # fmt: skip
def test_urls(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@given(st.text(st.characters(categories=["L", "N", "P"]), min_size=12))
def test_a_known_secret_goes_wherever_it_stands(secret: str) -> None:
    redactor = Redactor.knowing([secret])
    shown = redactor.data({"a": [f"before {secret} after", {"b": secret}], secret: 1})
    assert secret not in str(shown)


def test_a_known_secret_goes_in_its_other_spellings_too() -> None:
    redactor = Redactor.knowing(['p@ss/w"rd long', "line one\nline two"])
    text = 'p%40ss%2Fw%22rd%20long and "p@ss/w\\"rd long" and line two'
    assert redactor.text(text) == f'{REDACTED} and "{REDACTED}" and {REDACTED}'


def test_short_values_are_not_hunted_for() -> None:
    assert Redactor.knowing(["true", ""]).text("it is true") == "it is true"


def test_values_of_sensitive_keys_go_whole() -> None:
    shown = Redactor().data(
        {
            "api_key": "x",
            "tokens": [{"secret": "y"}],
            "password": 12345,
            "session": {"a": "b"},
            "reserve_tokens": 16,
            "token": None,
            "secrets": True,
            "api_key_secret": "OPENAI_API_KEY",
            "oauth_secret": "a plain value",
            "empty_token": "",
        }
    )
    assert shown == {
        "api_key": REDACTED,
        "tokens": [REDACTED],
        "password": REDACTED,
        "session": {REDACTED: 1},
        "reserve_tokens": 16,
        "token": None,
        "secrets": True,
        "api_key_secret": "OPENAI_API_KEY",
        "oauth_secret": REDACTED,
        "empty_token": "",
    }


def test_the_home_directory_is_a_tilde_and_long_text_is_cut() -> None:
    redactor = Redactor.knowing([], home="/home/ada")
    assert redactor.text("/home/ada/x") == "~/x"
    assert redactor.text("x" * 9_000) == "x" * MAX_TEXT + "…"


def test_a_sentence_keeps_its_colons() -> None:
    redactor = Redactor.knowing(["hunter2222"])
    told = "config.toml:3: gateway.rpc.tokens[0].secret: is required, not hunter2222"
    assert redactor.prose(told) == told.replace("hunter2222", REDACTED)


def test_secrets_are_collected_from_data() -> None:
    data = {
        "api_key": "one",
        "nested": [
            {"secret": {"deep": ["two"]}},
            {"url": "http://me:three@host/?key=four&sslmode=require&q=longvalue"},
        ],
        "api_key_secret": "A_REFERENCE",
        "model": "five",
        "token": "SIX1SIX2",
    }
    assert set(secrets_in(data)) == {
        "one",
        "two",
        "me:three",
        "three",
        "four",
        "longvalue",
        "SIX1SIX2",
    }
