"""Providers as rows of data: where they are, what they speak, where their key comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lemon_ai.local_server import LOCAL_PROVIDER


@dataclass(frozen=True, slots=True)
class Provider:
    """`base_url` is the vendor's own; `key_variables` in order of preference;
    `base_url_variable` names another base URL that the key then belongs to.

    `api_elsewhere`: what is spoken at any other base URL, where that differs. A provider whose
    customers each have a host has `resource_url`, in which `{resource_name}` stands for the value
    of `resource_variable`, and needs a key wherever it is. `is_server`: a program on one's own
    machine, which has the models that it was given, takes no money, and may ask for no key.
    `lists_models`: what the answer of `GET {base}/models` does to the rows of the catalogue:
    `filter` them, `complete` them, or `replace` them.
    """

    id: str
    api: str
    base_url: str = ""
    key_variables: tuple[str, ...] = ()
    base_url_variable: str | None = None
    api_elsewhere: str | None = None
    resource_url: str = ""
    resource_variable: str | None = None
    is_server: bool = False
    lists_models: Literal["filter", "complete", "replace"] | None = None


def _vendor(name: str, base_url: str, *keys: str, **more: Any) -> Provider:
    """A vendor of chat completions, unless `more` says otherwise."""
    fields = {"api": "openai_completions", "base_url_variable": f"{name.upper()}_BASE_URL", **more}
    return Provider(id=name, base_url=base_url, key_variables=keys, **fields)


def _server(name: str, port: int, *keys: str) -> Provider:
    """A server of chat completions on this machine, at the port it has unless told otherwise."""
    base_url = f"http://127.0.0.1:{port}/v1"
    return _vendor(name, base_url, *keys, is_server=True, lists_models="replace")


_MESSAGES = "anthropic_messages"
_KIMI_KEYS = ("KIMI_API_KEY", "MOONSHOT_API_KEY")
_QWEN = "aliyuncs.com/compatible-mode/v1"

# In the order in which a provider is chosen when several are ready.
PROVIDERS: Mapping[str, Provider] = {
    row.id: row
    for row in (
        Provider(
            id="anthropic",
            api="anthropic_messages",
            base_url="https://api.anthropic.com",
            key_variables=("ANTHROPIC_API_KEY",),
            base_url_variable="ANTHROPIC_BASE_URL",
        ),
        Provider(
            id="openai",
            api="openai_responses",
            base_url="https://api.openai.com/v1",
            key_variables=("OPENAI_API_KEY",),
            base_url_variable="OPENAI_BASE_URL",
            api_elsewhere="openai_completions",
            lists_models="filter",
        ),
        # Its host has the region in its name, and other keys than this one sign: see the adapter.
        Provider(
            id="amazon_bedrock",
            api="bedrock_converse_stream",
            key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
            base_url_variable="AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
        ),
        Provider(
            id="google",
            api="google_generative_ai",
            base_url="https://generativelanguage.googleapis.com/v1beta",
            key_variables=("GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"),
            base_url_variable="GOOGLE_BASE_URL",
        ),
        _vendor("kimi", "https://api.moonshot.ai/anthropic", *_KIMI_KEYS, api=_MESSAGES),
        _vendor("kimi_coding", "https://api.kimi.com/coding", "KIMI_API_KEY", api=_MESSAGES),
        _vendor("opencode", "https://opencode.ai/zen/v1", "OPENCODE_API_KEY"),
        _vendor("opencode_go", "https://opencode.ai/zen/go/v1", "OPENCODE_API_KEY"),
        _vendor("xai", "https://api.x.ai/v1", "XAI_API_KEY"),
        _vendor("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        _vendor("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
        _vendor("deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
        _vendor("qwen", f"https://dashscope-intl.{_QWEN}", "DASHSCOPE_API_KEY"),
        _vendor("minimax", "https://api.minimax.io/anthropic", "MINIMAX_API_KEY", api=_MESSAGES),
        _vendor("zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
        Provider(
            id="azure_openai_responses",
            api="azure_openai_responses",
            key_variables=("AZURE_OPENAI_API_KEY",),
            base_url_variable="AZURE_OPENAI_BASE_URL",
            resource_url="https://{resource_name}.openai.azure.com/openai/v1",
            resource_variable="AZURE_OPENAI_RESOURCE_NAME",
        ),
        # Its host has the location in its name, and its tokens are no keys: see the adapter.
        Provider(
            id="google_vertex",
            api="google_vertex",
            base_url_variable="GOOGLE_VERTEX_BASE_URL",
        ),
        _vendor("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        _vendor("huggingface", "https://router.huggingface.co/v1", "HF_TOKEN"),
        _vendor(
            "minimax_cn",
            "https://api.minimaxi.com/anthropic",
            "MINIMAX_CN_API_KEY",
            api=_MESSAGES,
        ),
        _vendor("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
        _vendor(
            "openrouter",
            "https://openrouter.ai/api/v1",
            "OPENROUTER_API_KEY",
            lists_models="complete",
        ),
        _vendor(
            "vercel_ai_gateway",
            "https://ai-gateway.vercel.sh",
            "AI_GATEWAY_API_KEY",
            api=_MESSAGES,
            lists_models="complete",
        ),
        _server("ollama", 11434, "OLLAMA_API_KEY"),
        _server("lm_studio", 1234, "LM_STUDIO_API_KEY"),
        _server("vllm", 8000, "VLLM_API_KEY"),
        _server("llama_cpp", 8080, "LLAMA_CPP_API_KEY"),
        Provider(id=LOCAL_PROVIDER, api="openai_completions"),
    )
}
