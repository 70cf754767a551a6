"""`runtime.tools` and the smaller sections of `runtime` (specification lemon_core 10.2)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lemon_core.config.model import LemonConfig
from lemon_core.config.tools import Tools
from lemon_core.tests.config.homes import Home

KERNEL = "runtime.tools.execute_code"


def test_the_documented_defaults() -> None:
    assert Tools().model_dump() == {
        "auto_resize_images": True,
        "web": {
            "search": {
                "enabled": True,
                "provider": "brave",
                "max_results": 5,
                "timeout_seconds": 30,
                "cache_ttl_minutes": 15,
                "failover": {"enabled": True, "provider": None},
                "perplexity": {"base_url": None, "model": "perplexity/sonar-pro"},
                "api_key": None,
                "api_key_secret": None,
            },
            "fetch": {
                "enabled": True,
                "max_chars": 20_000,
                "timeout_seconds": 30,
                "cache_ttl_minutes": 15,
                "max_redirects": 3,
                "user_agent": None,
                "readability": True,
                "allow_private_network": False,
                "allowed_hostnames": (),
                "firecrawl": {
                    "enabled": None,
                    "base_url": "https://api.firecrawl.dev",
                    "only_main_content": True,
                    "max_age_ms": 172_800_000,
                    "timeout_seconds": 60,
                    "api_key": None,
                    "api_key_secret": None,
                },
            },
            "cache": {"persistent": True, "path": None, "max_entries": 100},
        },
        "wasm": {
            "enabled": False,
            "auto_build": True,
            "runtime_path": "",
            "tool_paths": (),
            "memory_bytes": 10_485_760,
            "timeout_ms": 60_000,
            "fuel": 10_000_000,
            "cache_compiled": True,
            "cache_dir": "",
            "max_tool_invoke_depth": 4,
        },
        "execute_code": {
            "enabled": False,
            "python_path": "",
            "timeout_ms": 120_000,
            "max_rpc_calls": 100,
            "max_rpc_result_bytes": 5_242_880,
            "max_output_bytes": 50_000,
            "tools": (),
            "kernel_mode": "per_call",
            "kernel_idle_timeout_ms": 1_800_000,
            "max_live_kernels": 16,
            "max_queued_cells_per_kernel": 8,
        },
        "debug": {"enabled": False},
        "disclosure": {
            "enabled": True,
            "budget_tokens": 40_000,
            "catalog_tokens": 2_000,
            "max_results": 5,
        },
    }
    runtime = LemonConfig().runtime
    assert runtime.tools == Tools()
    assert (runtime.lanes.main, runtime.lanes.subagent) == (4, 8)
    assert runtime.async_followups.default_queue_mode == "steer_backlog"
    assert (runtime.extensions.enabled, runtime.extensions.auto_load_default_paths) == (True, False)
    assert runtime.budget_defaults.max_children == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"web": {"search": {"provider": "other"}}},
        {"web": {"search": {"max_results": 11}}},
        {"web": {"search": {"perplexity": {"base_url": "ftp://a"}}}},
        {"web": {"search": {"api_key_secret": ""}}},
        {"web": {"fetch": {"max_chars": 99}}},
        {"web": {"fetch": {"allowed_hostnames": [""]}}},
        {"wasm": {"fuel": 0}},
        {"execute_code": {"timeout_ms": 999}},
        {"disclosure": {"max_results": 21}},
        {"debug": True},
    ],
)
def test_what_means_nothing_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        Tools.model_validate(wrong)


def test_a_key_of_a_tool_is_in_no_representation() -> None:
    tools = Tools.model_validate({"web": {"search": {"api_key": "sk-hidden"}}})
    assert "sk-hidden" not in repr(tools)


# -- what is read leniently ------------------------------------------------------------------


def test_an_invalid_kernel_mode_means_one_kernel_for_each_call(home: Home) -> None:
    home.write(f"{KERNEL}.kernel_mode = 'session'")
    assert home.load().config.runtime.tools.execute_code.kernel_mode == "session"
    loaded = home.load({"LEMON_EXECUTE_CODE_KERNEL_MODE": "sessoin"})
    assert loaded.config.runtime.tools.execute_code.kernel_mode == "per_call"
    assert loaded.warnings[0].startswith("LEMON_EXECUTE_CODE_KERNEL_MODE: must be 'per_call' or")
    assert loaded.warnings[0].endswith("; read as per_call")
    home.write(f"{KERNEL}.kernel_mode = 'sessoin'")
    assert home.load_plain().config.runtime.tools.execute_code.kernel_mode == "per_call"
    (error,) = home.errors()
    assert error.startswith(f"{home.global_file}:1: {KERNEL}.kernel_mode: must be 'per_call' or")


@pytest.mark.parametrize(
    "key", ["kernel_idle_timeout_ms", "max_live_kernels", "max_queued_cells_per_kernel"]
)
@pytest.mark.parametrize("wrong", [0, -1])
def test_a_bound_that_is_not_positive_leaves_the_next_layer(
    home: Home, key: str, wrong: int
) -> None:
    home.write(f"{KERNEL}.{key} = 7")
    loaded = home.load({f"LEMON_EXECUTE_CODE_{key.upper()}": str(wrong)})
    assert getattr(loaded.config.runtime.tools.execute_code, key) == 7
    assert len(loaded.warnings) == 1
    home.write(f"{KERNEL}.{key} = {wrong}")
    default = getattr(LemonConfig().runtime.tools.execute_code, key)
    assert getattr(home.load_plain().config.runtime.tools.execute_code, key) == default
    assert len(home.errors()) == 1


@pytest.mark.parametrize(
    ("text", "paths"),
    [("a, b", ("a", "b")), (" c ", ("c",)), ("", ("below",)), (" , ,", ("below",))],
)
def test_a_list_that_reads_as_nothing_does_not_override(
    home: Home, text: str, paths: tuple[str, ...]
) -> None:
    home.write("runtime.extension_paths = ['below']")
    loaded = home.load({"LEMON_EXTENSION_PATHS": text})
    assert loaded.config.runtime.extension_paths == paths
    assert loaded.warnings == ()
