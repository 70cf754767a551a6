"""Provider names: how people write them, and where each one's key is looked for.

One row for each provider that Lemon knows by name. A `[providers.<name>]` block with any other name
is a server of the user's own: it goes by its own name, in lower case and with underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["key", "local_server", "vertex", "bedrock", "embedded"]


@dataclass(frozen=True, slots=True)
class ProviderName:
    """One provider by name.

    `config_name` is how its block is called where that differs; `variables` hold its key, in order.
    `secret` and `oauth_secret` are where its key and its OAuth payload are stored by default; an
    empty one does not exist. `kind` says what makes it ready.
    """

    canonical: str
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    config_name: str = ""
    kind: Kind = "key"
    secret: str = ""
    oauth_secret: str = ""


def _row(
    canonical: str,
    *variables: str,
    aliases: str = "",
    config_name: str = "",
    kind: Kind = "key",
    secret: str = "",
    oauth_secret: str = "",
) -> ProviderName:
    has_key = kind in ("key", "vertex", "bedrock")
    return ProviderName(
        canonical=canonical,
        aliases=tuple(aliases.split()),
        variables=variables,
        config_name=config_name or canonical,
        kind=kind,
        secret=secret or (default_secret(canonical) if has_key else ""),
        oauth_secret=oauth_secret,
    )


def default_secret(canonical: str) -> str:
    """The name of the stored secret that holds a provider's key when nothing else is said."""
    return f"llm_{canonical}_api_key"


_ROWS: Final = (
    _row(
        "anthropic",
        "ANTHROPIC_API_KEY",
        aliases="claude",
        secret="llm_anthropic_api_key_raw",
        oauth_secret="llm_anthropic_api_key",
    ),
    _row("openai", "OPENAI_API_KEY"),
    _row(
        "openai_codex",
        "OPENAI_CODEX_API_KEY",
        "CHATGPT_TOKEN",
        aliases="codex",
        config_name="openai-codex",
        oauth_secret="llm_openai_codex_api_key",
    ),
    _row(
        "amazon_bedrock",
        "AWS_BEARER_TOKEN_BEDROCK",
        aliases="bedrock aws bedrock_converse_stream",
        kind="bedrock",
    ),
    _row("google", "GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"),
    _row("kimi", "KIMI_API_KEY", "MOONSHOT_API_KEY", aliases="moonshot"),
    _row("kimi_coding", "KIMI_API_KEY", aliases="kimi_for_coding"),
    _row("opencode", "OPENCODE_API_KEY"),
    _row("opencode_go", "OPENCODE_API_KEY", aliases="open_code_go"),
    _row("xai", "XAI_API_KEY"),
    _row("mistral", "MISTRAL_API_KEY"),
    _row("cerebras", "CEREBRAS_API_KEY"),
    _row("deepseek", "DEEPSEEK_API_KEY"),
    _row("qwen", "DASHSCOPE_API_KEY"),
    _row("minimax", "MINIMAX_API_KEY", aliases="mini_max minimax_m2"),
    _row("zai", "ZAI_API_KEY", aliases="z_ai z.ai glm"),
    _row("azure_openai_responses", "AZURE_OPENAI_API_KEY", aliases="azure_openai"),
    _row("google_vertex", kind="vertex"),
    _row("groq", "GROQ_API_KEY"),
    _row("huggingface", "HF_TOKEN"),
    _row("minimax_cn", "MINIMAX_CN_API_KEY", "MINIMAX_API_KEY"),
    _row("fireworks", "FIREWORKS_API_KEY", aliases="fireworks_ai"),
    _row("openrouter", "OPENROUTER_API_KEY"),
    _row("vercel_ai_gateway", "AI_GATEWAY_API_KEY"),
    _row("ollama", "OLLAMA_API_KEY", kind="local_server"),
    _row("lm_studio", "LM_STUDIO_API_KEY", aliases="lmstudio", kind="local_server"),
    _row("vllm", "VLLM_API_KEY", kind="local_server"),
    _row("llama_cpp", "LLAMA_CPP_API_KEY", aliases="llama.cpp", kind="local_server"),
    _row("local", aliases="embedded", kind="embedded"),
)

# In the order of preference of the catalogue.
NAMES: Final[Mapping[str, ProviderName]] = {row.canonical: row for row in _ROWS}
ALIASES: Final[Mapping[str, str]] = {alias: row.canonical for row in _ROWS for alias in row.aliases}


def normal_name(name: str) -> str:
    """The name in lower case with underscores, aliases resolved; it may still be unknown."""
    plain = name.strip().lower().replace("-", "_")
    return ALIASES.get(plain, plain)


def canonical_name(name: str) -> str | None:
    """The provider that is meant; None for a name that Lemon does not know by itself."""
    normal = normal_name(name)
    return normal if normal in NAMES else None


def kind_of(name: str) -> Kind:
    """What makes the provider with this normal name ready."""
    row = NAMES.get(name)
    return "key" if row is None else row.kind


def split_spec(spec: str, providers: Iterable[str]) -> tuple[str | None, str]:
    """Provider and model id of `provider:id`; (None, spec) when no known provider leads it.

    Model ids hold colons themselves (`qwen3:8b`), so only a known provider's name counts as one.
    """
    head, colon, rest = spec.strip().partition(":")
    name = normal_name(head)
    if colon and name in providers and rest.strip():
        return name, rest.strip()
    return None, spec.strip()
