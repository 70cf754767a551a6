"""The typed configuration (specification lemon_core 10.2, lemon_gateway 12, lemon_router 10)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from lemon_core.config.model import LemonConfig


def test_the_documented_defaults() -> None:
    config = LemonConfig()
    assert (config.defaults.provider, config.defaults.model) == (None, None)
    compaction = config.runtime.compaction
    assert (compaction.reserve_tokens, compaction.keep_recent_tokens) == (16_384, 20_000)
    assert (compaction.enabled, compaction.trigger_ratio) == (True, 0.9)
    retry = config.runtime.retry
    assert (retry.enabled, retry.max_retries, retry.base_delay_ms) == (True, 3, 1_000)
    assert config.runtime.shell.timeout_ms == 60_000
    gateway = config.gateway
    assert (gateway.max_concurrent_runs, gateway.auto_resume) == (2, False)
    assert (gateway.require_engine_lock, gateway.engine_lock_timeout_ms) == (True, 60_000)
    assert (gateway.health_port, config.router.health_port) == (4042, 4043)
    assert gateway.rpc.journal_total_max_bytes == 64 * 1_048_576
    assert config.router.run_process_limit == 500
    assert config.store.backend == "sqlite"
    assert config.features.session_search == "default-on"
    assert config.introspection.enabled


@pytest.mark.behaviour("lemon_core.30")
def test_queue_modes() -> None:
    LemonConfig.model_validate({"gateway": {"queue": {"mode": "followup", "drop": "oldest"}}})
    with pytest.raises(ValidationError):
        LemonConfig.model_validate({"gateway": {"queue": {"mode": "fifo"}}})


@pytest.mark.parametrize(
    ("written", "kept"),
    [("localhost", "127.0.0.1"), ("any", "0.0.0.0"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1")],
)
def test_bind_addresses(written: str, kept: str) -> None:
    config = LemonConfig.model_validate({"gateway": {"health_ip": written}})
    assert config.gateway.health_ip == kept
    with pytest.raises(ValidationError):
        LemonConfig.model_validate({"gateway": {"health_ip": "example.org"}})


@pytest.mark.parametrize("port", [-1, 65_536, "4042", 1.5, True])
def test_what_is_no_port(port: object) -> None:
    with pytest.raises(ValidationError):
        LemonConfig.model_validate({"gateway": {"health_port": port}})


@pytest.mark.parametrize(("written", "kept"), [("infinity", None), (1, 1)])
def test_the_limit_of_runs(written: object, kept: int | None) -> None:
    config = LemonConfig.model_validate({"router": {"run_process_limit": written}})
    assert config.router.run_process_limit == kept
    for wrong in (0, True, "none", 1.5):
        with pytest.raises(ValidationError):
            LemonConfig.model_validate({"router": {"run_process_limit": wrong}})


def test_one_target_or_a_list() -> None:
    one = LemonConfig.model_validate({"router": {"engine_target": "unix:/a"}})
    many = LemonConfig.model_validate({"router": {"engine_targets": ["unix:/a", "b:1"]}})
    assert one.router.targets == ("unix:/a",)
    assert many.router.targets == ("unix:/a", "b:1")
    assert LemonConfig().router.targets == ()


def test_there_is_always_a_default_profile() -> None:
    config = LemonConfig.model_validate({"profiles": {"a": {"name": "A"}}})
    assert sorted(config.profiles) == ["a", "default"]
    named = LemonConfig.model_validate({"profiles": {"default": {"name": "Me"}}})
    assert named.profiles["default"].name == "Me"


def test_a_configuration_is_frozen() -> None:
    config = LemonConfig()
    with pytest.raises(ValidationError):
        config.gateway.max_concurrent_runs = 3  # type: ignore[misc]  # that is what is tested


def test_importing_loads_no_toml_editor_and_no_dotenv() -> None:
    """The start of every command pays for what this import brings along."""
    script = (
        "import sys, lemon_core.config; "
        "print([m for m in ('tomlkit', 'tomllib', 'dotenv', 'difflib')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "[]"
