"""Configuration from the environment and from `.env`.

Variables are read leniently: a value that means nothing is passed over with a warning, and the
layer below stays. An empty variable is an unset one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lemon_core.config import keys
from lemon_core.config.source import KeyPath
from lemon_core.paths import PathSettings

Kind = Literal["text", "integer", "number", "boolean"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, the key that it sets, and how its text is read."""

    name: str
    path: tuple[str, ...]
    kind: Kind = "text"


def _lemon(name: str, path: str, kind: Kind = "text") -> Variable:
    return Variable(f"LEMON_{name}", tuple(path.split(".")), kind)


VARIABLES: Final[tuple[Variable, ...]] = (
    _lemon("DEFAULT_PROVIDER", "defaults.provider"),
    _lemon("DEFAULT_MODEL", "defaults.model"),
    _lemon("DEFAULT_THINKING_LEVEL", "defaults.thinking_level"),
    _lemon("COMPACTION_ENABLED", "runtime.compaction.enabled", "boolean"),
    _lemon("COMPACTION_RESERVE_TOKENS", "runtime.compaction.reserve_tokens", "integer"),
    _lemon("COMPACTION_KEEP_RECENT_TOKENS", "runtime.compaction.keep_recent_tokens", "integer"),
    _lemon(
        "COMPACTION_CONTEXT_WINDOW_TOKENS", "runtime.compaction.context_window_tokens", "integer"
    ),
    _lemon("COMPACTION_TRIGGER_RATIO", "runtime.compaction.trigger_ratio", "number"),
    _lemon("RETRY_ENABLED", "runtime.retry.enabled", "boolean"),
    _lemon("MAX_RETRIES", "runtime.retry.max_retries", "integer"),
    _lemon("BASE_DELAY_MS", "runtime.retry.base_delay_ms", "integer"),
    _lemon("SHELL_PATH", "runtime.shell.path"),
    _lemon("SHELL_COMMAND_PREFIX", "runtime.shell.command_prefix"),
    _lemon("THEME", "runtime.theme"),
    _lemon("GATEWAY_MAX_CONCURRENT_RUNS", "gateway.max_concurrent_runs", "integer"),
    _lemon("GATEWAY_DEFAULT_CWD", "gateway.default_cwd"),
    _lemon("GATEWAY_AUTO_RESUME", "gateway.auto_resume", "boolean"),
    _lemon("GATEWAY_REQUIRE_ENGINE_LOCK", "gateway.require_engine_lock", "boolean"),
    _lemon("GATEWAY_ENGINE_LOCK_TIMEOUT_MS", "gateway.engine_lock_timeout_ms", "integer"),
    _lemon("GATEWAY_ENABLE_WEBHOOK", "gateway.enable_webhook", "boolean"),
    _lemon("GATEWAY_HEALTH_PORT", "gateway.health_port", "integer"),
    _lemon("ROUTER_HEALTH_PORT", "router.health_port", "integer"),
    _lemon("AGENT_PROFILES_CWD", "router.agent_profiles_cwd"),
    _lemon("STORE_BACKEND", "store.backend"),
    _lemon("STORE_PATH", "store.path"),
    _lemon("LOG_LEVEL", "logging.level"),
    _lemon("LOG_FILE", "logging.file"),
    _lemon("LOG_MAX_NO_BYTES", "logging.max_no_bytes", "integer"),
    _lemon("LOG_MAX_NO_FILES", "logging.max_no_files", "integer"),
    _lemon("LOG_COMPRESS_ON_ROTATE", "logging.compress_on_rotate", "boolean"),
    _lemon("LOG_FILESYNC_REPEAT_INTERVAL", "logging.filesync_repeat_interval", "integer"),
    _lemon("TUI_THEME", "tui.theme"),
    _lemon("TUI_DEBUG", "tui.debug", "boolean"),
    _lemon("FEATURE_SESSION_SEARCH", "features.session_search"),
    _lemon("FEATURE_ROUTING_FEEDBACK", "features.routing_feedback"),
    _lemon("FEATURE_SKILL_SYNTHESIS_DRAFTS", "features.skill_synthesis_drafts"),
)

# Providers whose variables count without a `[providers.<name>]` row. Names are data here.
_PROVIDER_NAMES: Final = (
    "anthropic openai openai-codex google kimi kimi_coding opencode opencode_go xai mistral "
    "cerebras deepseek qwen minimax zai azure_openai_responses groq huggingface minimax_cn "
    "fireworks openrouter vercel_ai_gateway ollama lm_studio vllm llama_cpp"
)
KNOWN_PROVIDERS: Final = tuple(_PROVIDER_NAMES.split())

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Setting:
    """A value from a variable, and which one that was."""

    variable: str
    path: KeyPath
    value: object


def settings(
    environ: Mapping[str, str], providers: Iterable[str]
) -> tuple[list[Setting], list[str]]:
    """What the variables say, and one warning for each that cannot be read.

    `providers` are the configured rows, which have variables like the known ones.
    """
    found: list[Setting] = []
    warnings: list[str] = []
    for variable in (*VARIABLES, *_provider_variables(providers)):
        text = environ.get(variable.name, "").strip()
        if not text:
            continue
        value = _read(text, variable.kind)
        if value is None:
            warnings.append(f"{variable.name}: expected {_EXPECTED[variable.kind]}, ignored")
        else:
            found.append(Setting(variable.name, variable.path, value))
    return found, warnings


def environment(
    paths: PathSettings, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str], list[str]]:
    """`environ` with gaps filled from `.env`; beside it warnings and errors about that file.

    The file is `~/.lemon/.env`, or that in `LEMON_DOTENV_DIR`; never one of the working directory,
    because whoever wrote the project there would choose the variables of this process.
    """
    configured = environ.get("LEMON_DOTENV_DIR", "").strip()
    path = (paths.expand(configured) if configured else paths.state_dir) / ".env"
    try:
        text = path.read_text("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return dict(environ), [], []
    except OSError as exc:
        return dict(environ), [], [f"{path}: cannot be read: {exc.strerror}"]
    except UnicodeDecodeError:
        return dict(environ), [], [f"{path}: is not UTF-8 text"]
    values, warnings = _parse_dotenv(path, text, environ)
    return {**values, **environ}, warnings, []


def _parse_dotenv(
    path: Path, text: str, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    import io  # dotenv is for those who have the file

    from dotenv.parser import parse_stream
    from dotenv.variables import parse_variables

    values: dict[str, str] = {}
    warnings: list[str] = []
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:
            warnings.append(f"{path}:{binding.original.line}: not of the form NAME=value, ignored")
        elif binding.key is not None and binding.value is not None:
            known = {**values, **environ}
            atoms = parse_variables(binding.value)
            values[binding.key] = "".join(atom.resolve(known) for atom in atoms)
    return values, warnings


def _provider_variables(configured: Iterable[str]) -> list[Variable]:
    rows = {_upper(name): name for name in KNOWN_PROVIDERS}
    rows |= {_upper(name): name for name in configured}
    return [
        Variable(f"{upper}_{suffix}", ("providers", name, key))
        for upper, name in rows.items()
        for suffix, key in (("API_KEY", "api_key"), ("BASE_URL", "base_url"))
    ]


def _upper(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name).upper()


_EXPECTED: Final[Mapping[Kind, str]] = {
    "text": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def _read(text: str, kind: Kind) -> object:
    if kind == "text":
        return text
    if kind == "boolean":
        lowered = text.lower()
        return True if lowered in _TRUE else False if lowered in _FALSE else None
    try:
        return int(text) if kind == "integer" else float(text)
    except ValueError:
        return None


def as_tables(found: Iterable[Setting]) -> dict[str, object]:
    """The settings as the nested tables that a file would hold."""
    data: dict[str, object] = {}
    for setting in found:
        keys.put(data, setting.path, setting.value)
    return data
