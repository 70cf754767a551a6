"""The `runtime.tools` section: tools that can be switched on, bounded or pointed elsewhere.

The agent reads these keys; their names, defaults and limits stand here once.
"""

from typing import Annotated, Literal

from pydantic import Field

from lemon_core.config.fields import HttpUrl, NotNegative, Positive, Section, Text, Texts

SearchProvider = Literal["brave", "perplexity"]
KernelMode = Literal["per_call", "session"]


class SearchFailover(Section):
    """Whether another provider is asked when the first one fails, and which one."""

    enabled: bool = True
    # None is the other one.
    provider: SearchProvider | None = None


class Perplexity(Section):
    """Where Perplexity is asked, and with which of its models."""

    # None is chosen by the kind of key.
    base_url: HttpUrl | None = None
    model: Text = "perplexity/sonar-pro"


class WebSearch(Section):
    """The `websearch` tool."""

    enabled: bool = True
    provider: SearchProvider = "brave"
    max_results: Annotated[int, Field(ge=1, le=10)] = 5
    timeout_seconds: Positive = 30
    # 0 keeps nothing.
    cache_ttl_minutes: NotNegative = 15
    failover: SearchFailover = SearchFailover.model_construct()
    perplexity: Perplexity = Perplexity.model_construct()
    api_key: Annotated[Text | None, Field(repr=False)] = None
    api_key_secret: Text | None = None


class Firecrawl(Section):
    """The service that reads a page where a plain request cannot."""

    # None: on when there is a key.
    enabled: bool | None = None
    base_url: HttpUrl = "https://api.firecrawl.dev"
    only_main_content: bool = True
    max_age_ms: NotNegative = 172_800_000
    timeout_seconds: Positive = 60
    api_key: Annotated[Text | None, Field(repr=False)] = None
    api_key_secret: Text | None = None


class WebFetch(Section):
    """The `webfetch` tool."""

    enabled: bool = True
    max_chars: Annotated[int, Field(ge=100)] = 20_000
    timeout_seconds: Positive = 30
    cache_ttl_minutes: NotNegative = 15
    max_redirects: NotNegative = 3
    # None is the product's own.
    user_agent: Text | None = None
    readability: bool = True
    allow_private_network: bool = False
    allowed_hostnames: Texts = ()
    firecrawl: Firecrawl = Firecrawl.model_construct()


class WebCache(Section):
    """What both web tools keep."""

    persistent: bool = True
    # None is `~/.lemon/cache/web_tools`.
    path: Text | None = None
    max_entries: Positive = 100


class Web(Section):
    """The web tools."""

    search: WebSearch = WebSearch.model_construct()
    fetch: WebFetch = WebFetch.model_construct()
    cache: WebCache = WebCache.model_construct()


class Wasm(Section):
    """Tools compiled to WebAssembly, each with its limits. An empty path is the built-in one."""

    enabled: bool = False
    auto_build: bool = True
    runtime_path: str = ""
    tool_paths: Texts = ()
    memory_bytes: Positive = 10_485_760
    timeout_ms: Positive = 60_000
    fuel: Positive = 10_000_000
    cache_compiled: bool = True
    cache_dir: str = ""
    max_tool_invoke_depth: Positive = 4


class ExecuteCode(Section):
    """The `execute_code` tool. An empty `python_path` is this process's own Python."""

    enabled: bool = False
    python_path: str = ""
    timeout_ms: Annotated[int, Field(ge=1_000)] = 120_000
    max_rpc_calls: NotNegative = 100
    max_rpc_result_bytes: Positive = 5_242_880
    max_output_bytes: Positive = 50_000
    # Only narrows the helpers that a script may call; empty is all of them.
    tools: Texts = ()
    kernel_mode: KernelMode = "per_call"
    kernel_idle_timeout_ms: Positive = 1_800_000
    max_live_kernels: Positive = 16
    max_queued_cells_per_kernel: Positive = 8


class DebugTool(Section):
    """The `debug` tool."""

    enabled: bool = False


class Disclosure(Section):
    """When tool schemas are hidden behind a search, because they would fill the prompt."""

    enabled: bool = True
    budget_tokens: NotNegative = 40_000
    catalog_tokens: NotNegative = 2_000
    max_results: Annotated[int, Field(ge=1, le=20)] = 5


class Tools(Section):
    """All of `runtime.tools`."""

    auto_resize_images: bool = True
    web: Web = Web.model_construct()
    wasm: Wasm = Wasm.model_construct()
    execute_code: ExecuteCode = ExecuteCode.model_construct()
    debug: DebugTool = DebugTool.model_construct()
    disclosure: Disclosure = Disclosure.model_construct()
