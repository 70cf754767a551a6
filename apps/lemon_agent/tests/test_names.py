import pytest

from lemon_agent.runtime.names import canonical_name, split_spec

PROVIDERS = ["openai", "lm_studio", "local"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (" OpenAI ", "openai"),
        ("lm-studio", "lm_studio"),
        ("embedded", "local"),
        ("nobody", "nobody"),
    ],
)
def test_names_are_read_in_any_spelling(written: str, meant: str) -> None:
    assert canonical_name(written) == meant


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
