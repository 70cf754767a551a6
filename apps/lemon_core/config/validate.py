"""What is wrong with configuration values, in words for whoever wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from lemon_core.config import keys
from lemon_core.config.channels import GatewayChannel, channel_problems
from lemon_core.config.model import LemonConfig
from lemon_core.config.source import KeyPath
from lemon_core.tool_policy import InvalidToolPolicy

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_WORDS: Final[Mapping[str, str]] = {
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "mapping_type": "must be a table",
    "tuple_type": "must be a list",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "missing": "is required",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
# These say enough without the value, or have none.
_WITHOUT_VALUE: Final = frozenset({"missing", "string_too_short"})
_PRIVATE: Final = ("key", "secret", "token", "password")

ENGINE_KEY_MESSAGE: Final = (
    "removed: every run uses the one native engine; delete this key (a model is chosen with "
    "defaults.model)"
)


def value_problems(
    data: Mapping[str, object],
    model: type[LemonConfig] = LemonConfig,
    channels: Iterable[GatewayChannel] = (),
) -> list[tuple[KeyPath, str]]:
    """Every value of `data` that means nothing, as (path, message)."""
    try:
        model.model_validate(data)
    except ValidationError as exc:
        found: dict[KeyPath, str] = {}
        for error in exc.errors(include_url=False):
            found.setdefault(_place(error, data), _message(error))
        return list(found.items())
    return channel_problems(channels, data)


def whole_problems(
    config: LemonConfig, configured: Mapping[str, object]
) -> list[tuple[KeyPath, str]]:
    """What does not fit together once all layers are joined.

    `configured` is the global file: rules about completeness are for rows that someone wrote, not
    for one that a variable alone brought up.
    """
    parts: tuple[tuple[KeyPath, Callable[[], list[tuple[str, str]]]], ...] = (
        (("gateway", "rpc"), config.gateway.rpc.problems),
        (("router", "rpc"), config.router.rpc.problems),
        (("router",), config.router.problems),
    )
    found: list[tuple[KeyPath, str]] = [
        ((*path, key), message) for path, problems in parts for key, message in problems()
    ]
    found += [
        (path, message)
        for path, message in _routing_problems(config)
        if keys.get(configured, path) is not None
    ]
    providers = configured.get("providers")
    for name in providers if isinstance(providers, Mapping) else ():
        provider = config.providers.get(name)
        if _is_codex(name) and provider is not None and provider.auth_source is None:
            path = ("providers", name, "auth_source")
            found.append((path, "is required: oauth or api_key"))
    return found


def _routing_problems(config: LemonConfig) -> list[tuple[KeyPath, str]]:
    at = ("runtime", "provider_routing")
    problems = config.runtime.provider_routing.problems()
    return [((*at, *path), message) for path, message in problems]


def unknown_key_message(path: KeyPath, known: tuple[str, ...]) -> str:
    """A line about a key that nothing reads, with the key that was perhaps meant."""
    from difflib import get_close_matches  # only for whoever mistyped

    name = str(path[-1])
    kind = "section" if len(path) == 1 else "key"
    near = get_close_matches(name, known, n=1)
    return f"unknown {kind}, ignored" + (f"; did you mean {near[0]}?" if near else "")


def _is_codex(name: str) -> bool:
    return name.lower().replace("-", "_") == "openai_codex"


def _place(error: ErrorDetails, data: Mapping[str, object]) -> KeyPath:
    """Where the value stands; the names of a union's members, which pydantic adds, are left out."""
    path = error["loc"]
    while path and not isinstance(keys.get(data, path[:-1]), Mapping | list):
        path = path[:-1]
    return path


def _message(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, InvalidToolPolicy):
        return ": ".join(part for part in (cause.path, cause.detail) if part)
    words = str(cause) if cause is not None else _WORDS.get(error["type"])
    message = words.format(**context) if words and cause is None else words or error["msg"]
    if error["type"] in _WITHOUT_VALUE or not _is_showable(error["loc"], error["input"]):
        return message
    return f"{message}, not {_shown(error['input'])}"


def _is_showable(path: KeyPath, value: object) -> bool:
    last = next((part for part in reversed(path) if isinstance(part, str)), "")
    private = any(word in last for word in _PRIVATE)
    return isinstance(value, str | int | float) and not private


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
