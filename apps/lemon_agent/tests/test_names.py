import pytest

from lemon_agent.runtime.names import (
    ALIASES,
    NAMES,
    canonical_name,
    normal_name,
    split_spec,
)
from lemon_ai.providers import PROVIDERS as VENDORS

PROVIDERS = ["openai", "lm_studio", "local"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (" OpenAI ", "openai"),
        ("lm-studio", "lm_studio"),
        ("embedded", "local"),
        ("Claude", "anthropic"),
        ("codex", "openai_codex"),
        ("openai-codex", "openai_codex"),
        ("opencode-go", "opencode_go"),
        ("open-code-go", "opencode_go"),
        ("google-vertex", "google_vertex"),
        ("azure-openai", "azure_openai_responses"),
        ("bedrock", "amazon_bedrock"),
        ("aws", "amazon_bedrock"),
        ("bedrock_converse_stream", "amazon_bedrock"),
        ("moonshot", "kimi"),
        ("kimi-for-coding", "kimi_coding"),
        ("z-ai", "zai"),
        ("z.ai", "zai"),
        ("glm", "zai"),
        ("mini-max", "minimax"),
        ("minimax-m2", "minimax"),
        ("fireworks_ai", "fireworks"),
        ("llama.cpp", "llama_cpp"),
        ("lmstudio", "lm_studio"),
    ],
)
def test_names_are_read_in_any_spelling(written: str, meant: str) -> None:
    assert canonical_name(written) == normal_name(written) == meant


def test_a_name_that_nobody_has_is_kept_as_it_is_written() -> None:
    assert canonical_name("My-Box") is None
    assert normal_name("My-Box") == "my_box"


def test_no_alias_is_a_name_of_its_own() -> None:
    assert ALIASES.keys().isdisjoint(NAMES)
    assert all(row.canonical in NAMES for row in NAMES.values())


@pytest.mark.parametrize("provider", VENDORS.values(), ids=lambda row: row.id)
def test_the_table_agrees_with_the_catalogue(provider: object) -> None:
    """What lemon_ai's adapters would read themselves leads here as well, in the same order."""
    row = VENDORS[provider.id]  # type: ignore[attr-defined]  # a row of VENDORS
    known = NAMES[row.id]
    assert known.variables[: len(row.key_variables)] == row.key_variables
    assert (known.kind == "local_server") == row.is_server


def test_preference_is_the_catalogues() -> None:
    assert [name for name in NAMES if name in VENDORS] == list(VENDORS)


def test_default_secrets_are_one_for_each_provider_with_a_key() -> None:
    assert NAMES["openai"].secret == "llm_openai_api_key"
    assert NAMES["anthropic"].secret == "llm_anthropic_api_key_raw"
    assert NAMES["anthropic"].oauth_secret == "llm_anthropic_api_key"
    assert NAMES["openai_codex"].config_name == "openai-codex"
    assert NAMES["local"].secret == NAMES["ollama"].secret == ""


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("openai:gpt-5-mini", ("openai", "gpt-5-mini")),
        (" LM-Studio: qwen3:8b ", ("lm_studio", "qwen3:8b")),
        ("qwen3:8b", (None, "qwen3:8b")),
        ("gpt-5-mini", (None, "gpt-5-mini")),
        ("openai:", (None, "openai:")),
    ],
)
def test_only_a_known_provider_leads_a_spec(spec: str, meant: tuple[str | None, str]) -> None:
    assert split_spec(spec, PROVIDERS) == meant
