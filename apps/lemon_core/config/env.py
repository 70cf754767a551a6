"""Configuration from the environment and from `.env`.

Variables are read leniently: a value that means nothing is passed over with a warning, and the
layer below stays. An empty variable is an unset one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from lemon_core.config import keys
from lemon_core.config.source import KeyPath
from lemon_core.config.variables import VARIABLES, Kind, Variable
from lemon_core.paths import PathSettings

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
    environ: Mapping[str, str], providers: Iterable[str], contributed: Iterable[Variable] = ()
) -> tuple[list[Setting], list[str]]:
    """What the variables say, and one warning for each that cannot be read.

    `providers` are the configured rows, which have variables like the known ones; `contributed`
    are the variables of sections that apps own.
    """
    found: list[Setting] = []
    warnings: list[str] = []
    for variable in (*VARIABLES, *contributed, *_provider_variables(providers)):
        for name in (variable.name, *variable.aliases):
            text = environ.get(name, "").strip()
            if not text:
                continue
            value = read_text(text, variable.kind)
            if value is not None:
                found.append(Setting(name, variable.path, value))
                break
            if variable.kind != "list":  # a list of nothing is as good as an unset variable
                warnings.append(f"{name}: expected {_EXPECTED[variable.kind]}, ignored")
    return found, warnings


def dotenv_file(paths: PathSettings, environ: Mapping[str, str]) -> Path:
    """Where `.env` is: in `~/.lemon`, or in `LEMON_DOTENV_DIR`."""
    configured = environ.get("LEMON_DOTENV_DIR", "").strip()
    return (paths.expand(configured) if configured else paths.state_dir) / ".env"


def environment(
    paths: PathSettings, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str], list[str]]:
    """`environ` with gaps filled from `.env`; beside it warnings and errors about that file.

    The file is `~/.lemon/.env`, or that in `LEMON_DOTENV_DIR`; never one of the working directory,
    because whoever wrote the project there would choose the variables of this process.
    """
    path = dotenv_file(paths, environ)
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
    "string": "text",
    "integer": "a whole number",
    "float": "a number",
    "boolean": "true or false",
    "list": "a list with commas",
    "bytes": "a number of bytes, for example 4096, 64KiB or 16MiB",
}
_BYTES: Final = r"(\d+) ?(?:([KMG])i?B?)?"
_POWERS: Final[Mapping[str, int]] = {"K": 1, "M": 2, "G": 3}


def read_text(text: str, kind: Kind) -> object:
    """What the text of a variable means; None when it means nothing of this kind."""
    match kind:
        case "string":
            return text
        case "boolean":
            lowered = text.lower()
            return True if lowered in _TRUE else False if lowered in _FALSE else None
        case "list":
            return [part for item in text.split(",") if (part := item.strip())] or None
        case "bytes":
            match = re.fullmatch(_BYTES, text, re.IGNORECASE | re.ASCII)
            return match and int(match[1]) * 1024 ** _POWERS.get((match[2] or "").upper(), 0)
        case "integer" | "float":
            try:
                return int(text) if kind == "integer" else float(text)
            except ValueError:
                return None
    assert_never(kind)


def as_tables(found: Iterable[Setting]) -> dict[str, object]:
    """The settings as the nested tables that a file would hold."""
    data: dict[str, object] = {}
    for setting in found:
        keys.put(data, setting.path, setting.value)
    return data
