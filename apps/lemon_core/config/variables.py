"""The variables of core's own keys: each name stands here once, beside the key that it sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["string", "integer", "float", "boolean", "list", "bytes"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, the key that it sets, and how its text is read; `aliases` stand in for it."""

    name: str
    path: tuple[str, ...]
    kind: Kind = "string"
    aliases: tuple[str, ...] = ()


# One row: the section, the prefix of its variables, and its keys by kind. A key's variable is the
# prefix and the key in capitals, unless the row says `key=NAME`.
_ROWS: Final[tuple[tuple[str, str, dict[Kind, str]], ...]] = (
    ("defaults", "DEFAULT_", {"string": "provider model thinking_level"}),
    (
        "runtime.compaction",
        "COMPACTION_",
        {
            "boolean": "enabled",
            "integer": "reserve_tokens keep_recent_tokens context_window_tokens",
            "float": "trigger_ratio",
        },
    ),
    (
        "runtime.retry",
        "",
        {"boolean": "enabled=RETRY_ENABLED", "integer": "max_retries base_delay_ms"},
    ),
    ("runtime.shell", "SHELL_", {"string": "path command_prefix"}),
    ("runtime", "", {"list": "extension_paths", "string": "theme"}),
    ("runtime.extensions", "EXTENSIONS_", {"boolean": "enabled auto_load_default_paths"}),
    ("runtime.budget_defaults", "BUDGET_", {"integer": "max_children"}),
    (
        "runtime.provider_routing",
        "PROVIDER_ROUTING_",
        {"boolean": "enabled require_credentials", "string": "default_pool default_profile"},
    ),
    ("runtime.provider_routing", "PROVIDER_", {"list": "fallback_providers"}),
    ("runtime.tools", "", {"boolean": "auto_resize_images"}),
    (
        "runtime.tools.web.search",
        "WEB_SEARCH_",
        {
            "boolean": "enabled",
            "string": "provider api_key api_key_secret",
            "integer": "max_results timeout_seconds cache_ttl_minutes",
        },
    ),
    (
        "runtime.tools.web.search.failover",
        "WEB_SEARCH_FAILOVER_",
        {"boolean": "enabled", "string": "provider"},
    ),
    ("runtime.tools.web.search.perplexity", "PERPLEXITY_", {"string": "base_url model"}),
    (
        "runtime.tools.web.fetch",
        "WEB_FETCH_",
        {
            "boolean": "enabled readability allow_private_network",
            "string": "user_agent",
            "integer": "max_chars timeout_seconds cache_ttl_minutes max_redirects",
            "list": "allowed_hostnames",
        },
    ),
    (
        "runtime.tools.web.fetch.firecrawl",
        "FIRECRAWL_",
        {
            "boolean": "enabled only_main_content",
            "string": "base_url api_key api_key_secret",
            "integer": "max_age_ms timeout_seconds",
        },
    ),
    (
        "runtime.tools.web.cache",
        "WEB_CACHE_",
        {"boolean": "persistent", "string": "path", "integer": "max_entries"},
    ),
    (
        "runtime.tools.wasm",
        "WASM_",
        {
            "boolean": "enabled auto_build cache_compiled",
            "string": "runtime_path cache_dir",
            "list": "tool_paths",
            "integer": "memory_bytes timeout_ms fuel max_tool_invoke_depth",
        },
    ),
    (
        "runtime.tools.execute_code",
        "EXECUTE_CODE_",
        {
            "boolean": "enabled",
            "string": "python_path kernel_mode",
            "list": "tools",
            "integer": "timeout_ms max_rpc_calls max_rpc_result_bytes max_output_bytes "
            "kernel_idle_timeout_ms max_live_kernels max_queued_cells_per_kernel",
        },
    ),
    (
        "runtime.tools.disclosure",
        "TOOL_DISCLOSURE_",
        {"boolean": "enabled", "integer": "budget_tokens catalog_tokens max_results"},
    ),
    (
        "gateway",
        "GATEWAY_",
        {
            "integer": "max_concurrent_runs engine_lock_timeout_ms health_port",
            "string": "default_cwd",
            "boolean": "auto_resume require_engine_lock enable_webhook",
        },
    ),
    ("router", "ROUTER_", {"integer": "health_port"}),
    ("router", "", {"string": "agent_profiles_cwd"}),
    ("store", "STORE_", {"string": "backend path"}),
    (
        "logging",
        "LOG_",
        {
            "string": "level file",
            "integer": "max_no_bytes max_no_files filesync_repeat_interval",
            "boolean": "compress_on_rotate",
        },
    ),
    ("tui", "TUI_", {"string": "theme", "boolean": "debug"}),
    (
        "features",
        "FEATURE_",
        {"string": "session_search routing_feedback skill_synthesis_drafts"},
    ),
)

# Names that were given by others, or before the rule above.
_NAMED: Final = (
    Variable("LEMON_SMS_WEBHOOK_ENABLED", ("gateway", "sms", "webhook_enabled"), "boolean"),
    Variable("LEMON_SMS_WEBHOOK_PORT", ("gateway", "sms", "webhook_port"), "integer"),
    Variable("LEMON_SMS_WEBHOOK_BIND", ("gateway", "sms", "webhook_bind")),
    Variable("LEMON_SMS_INBOX_TTL_MS", ("gateway", "sms", "inbox_ttl_ms"), "integer"),
    Variable("TWILIO_INBOX_NUMBER", ("gateway", "sms", "inbox_number")),
    Variable("TWILIO_AUTH_TOKEN", ("gateway", "sms", "auth_token")),
    Variable("TWILIO_VALIDATE_WEBHOOK", ("gateway", "sms", "validate_webhook"), "boolean"),
    Variable("TWILIO_WEBHOOK_URL", ("gateway", "sms", "webhook_url")),
    Variable("TWILIO_ACCOUNT_SID", ("gateway", "voice", "twilio_account_sid")),
    Variable("TWILIO_PHONE_NUMBER", ("gateway", "voice", "twilio_phone_number")),
    Variable("VOICE_PUBLIC_URL", ("gateway", "voice", "public_url")),
    Variable("VOICE_RECORDINGS_DIR", ("gateway", "voice", "recordings_dir")),
)


def _expanded() -> Iterator[Variable]:
    for section, prefix, kinds in _ROWS:
        for kind, words in kinds.items():
            for word in words.split():
                key, _, name = word.partition("=")
                full = f"LEMON_{name or prefix + key.upper()}"
                yield Variable(full, (*section.split("."), key), kind)


VARIABLES: Final = (*_expanded(), *_NAMED)
