"""What servers say of their models beyond the ids: window, price, what they can do.

Each kind of server has its own documents for that. Everything here is read with suspicion: what is
missing or odd is not known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

import anyio

from lemon_ai.text import dump_json
from lemon_ai.transport import Transport, TransportFailure
from lemon_ai.types import InputKind, ModelCost

Json = Mapping[str, Any]
_MILLION: Final = 1_000_000
# Requests at once, where a server has to be asked for each of its models.
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of one model; None: it says nothing."""

    id: str
    name: str | None = None
    context_window: int | None = None
    max_tokens: int | None = None
    cost: ModelCost | None = None
    input: tuple[InputKind, ...] | None = None
    reasoning: bool | None = None
    tools: bool | None = None


class Asker(Protocol):
    """One server, with its key."""

    async def get(self, url: str) -> Any:
        """The document, or None."""
        ...

    async def post(self, url: str, body: Json) -> Any:
        """The document, or None."""
        ...


class HttpAsker:
    """`Asker` over a transport; whatever goes wrong is no answer."""

    def __init__(self, transport: Transport, api_key: str | None) -> None:
        self._transport = transport
        self._headers = {"accept": "application/json", "content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def get(self, url: str) -> Any:
        """The document, or None."""
        return await _answer(self._transport.get_json(url, self._headers))

    async def post(self, url: str, body: Json) -> Any:
        """The document, or None."""
        return await _answer(self._transport.post_json(url, dump_json(body), self._headers))


async def _answer(asking: Awaitable[tuple[int, Any]]) -> Any:
    try:
        status, document = await asking
    except TransportFailure:
        return None
    return document if status == 200 else None


Probe = Callable[[Asker, str, Sequence[Facts]], Awaitable[Sequence[Facts]]]
"""Asks the server at this origin (scheme, host, port) for more about these models."""


def listed(document: object) -> list[Facts]:
    """The models of `GET {base}/models`, with whatever their rows say; models that do not write
    text are left out."""
    rows = document.get("data") if isinstance(document, dict) else None
    found = [row for row in _rows(rows) if _text(row.get("id")) and _writes_text(row)]
    return [_facts(row) for row in found]


def owner(document: object) -> str:
    """What the rows of a list say of the program that made it."""
    rows = document.get("data") if isinstance(document, dict) else None
    return next((_text(row.get("owned_by")) or "" for row in _rows(rows)), "")


def _writes_text(row: Json) -> bool:
    if row.get("type") not in (None, "language", "model", "llm", "vlm", "chat"):
        return False
    output = _object(row.get("architecture")).get("output_modalities")
    return not isinstance(output, list) or "text" in output


def _facts(row: Json) -> Facts:
    shape, top, tags = _object(row.get("architecture")), row.get("top_provider"), row.get("tags")
    abilities = row.get("supported_parameters")
    return Facts(
        id=str(row["id"]),
        name=_text(row.get("name")),
        # OpenRouter; Vercel and Groq; vLLM; Mistral
        context_window=_first(
            row, "context_length", "context_window", "max_model_len", "max_context_length"
        ),
        max_tokens=_count(_object(top).get("max_completion_tokens")) or _first(row, "max_tokens"),
        cost=_price(row.get("pricing")),
        input=_input(shape.get("input_modalities"), tags),
        reasoning=_has(abilities, "reasoning", tags, "reasoning"),
        tools=_has(abilities, "tools", tags, "tool-use"),
    )


def _has(abilities: object, ability: str, tags: object, tag: str) -> bool | None:
    if isinstance(abilities, list):
        return ability in abilities
    return tag in tags if isinstance(tags, list) else None


def _input(modalities: object, tags: object) -> tuple[InputKind, ...] | None:
    if isinstance(modalities, list):
        return ("text", "image") if "image" in modalities else ("text",)
    if isinstance(tags, list):
        return ("text", "image") if "vision" in tags else ("text",)
    return None


def _price(pricing: object) -> ModelCost | None:
    """Dollars per token, as text, under OpenRouter's or Vercel's names; a price below nothing
    stands for one that changes from call to call."""
    prices = _object(pricing)
    read = _per_million(prices.get("prompt", prices.get("input")))
    write = _per_million(prices.get("completion", prices.get("output")))
    if read is None or write is None:
        return None
    cached = _per_million(prices.get("input_cache_read"))
    stored = _per_million(prices.get("input_cache_write"))
    return ModelCost(
        input=read,
        output=write,
        # Nothing said of the cache: what is in it costs as much as what is not.
        cache_read=read if cached is None else cached,
        cache_write=read if stored is None else stored,
    )


def _per_million(value: object) -> float | None:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    try:
        price = float(value)
    except ValueError:
        return None
    return round(price * _MILLION, 6) if 0 <= price < 1 else None


# -- LM Studio -----------------------------------------------------------------------------------


async def lm_studio(ask: Asker, origin: str, models: Sequence[Facts]) -> Sequence[Facts]:
    """The window that a model was loaded with, else the largest it takes."""
    document = await ask.get(f"{origin}/api/v1/models")
    rows = document.get("models") if isinstance(document, dict) else None
    if isinstance(rows, list):
        return [_lm_studio(row) for row in _rows(rows) if _is_llm(row) and _text(row.get("key"))]
    document = await ask.get(f"{origin}/api/v0/models")  # before 0.4
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return models
    return [_lm_studio_v0(row) for row in _rows(rows) if _is_llm(row) and _text(row.get("id"))]


def _is_llm(row: Json) -> bool:
    return row.get("type") not in ("embedding", "embeddings")


def _lm_studio(row: Json) -> Facts:
    loaded = (_object(i.get("config")) for i in _rows(row.get("loaded_instances")))
    window = next((n for config in loaded if (n := _count(config.get("context_length")))), None)
    abilities = _object(row.get("capabilities"))
    tools = abilities.get("trained_for_tool_use")
    return Facts(
        id=str(row["key"]),
        name=_text(row.get("display_name")),
        context_window=window or _count(row.get("max_context_length")),
        input=("text", "image") if abilities.get("vision") is True else ("text",),
        tools=tools if isinstance(tools, bool) else None,
    )


def _lm_studio_v0(row: Json) -> Facts:
    return Facts(
        id=str(row["id"]),
        context_window=_first(row, "loaded_context_length", "max_context_length"),
        input=("text", "image") if row.get("type") == "vlm" else ("text",),
    )


# -- llama.cpp -----------------------------------------------------------------------------------


async def llama_cpp(ask: Asker, origin: str, models: Sequence[Facts]) -> Sequence[Facts]:
    """The window of a slot. A router has several models and answers 0 until one is named."""
    document = await ask.get(f"{origin}/props")
    if _slot_window(document):
        return [_llama_cpp(facts, document) for facts in models]

    async def named(facts: Facts) -> Facts:
        return _llama_cpp(facts, await ask.get(f"{origin}/props?model={quote(facts.id, safe='')}"))

    return await _each(models, named)


def _llama_cpp(facts: Facts, document: object) -> Facts:
    sees = _object(_object(document).get("modalities")).get("vision") is True
    return Facts(
        id=facts.id,
        name=facts.name,
        context_window=_slot_window(document) or facts.context_window,
        input=("text", "image") if sees else ("text",),
    )


def _slot_window(document: object) -> int | None:
    settings = _object(_object(document).get("default_generation_settings"))
    return _count(settings.get("n_ctx"))


# -- Ollama --------------------------------------------------------------------------------------


async def ollama(ask: Asker, origin: str, models: Sequence[Facts]) -> Sequence[Facts]:
    """The window that was allocated for a running model, else what the model could take."""
    running = _object(await ask.get(f"{origin}/api/ps")).get("models")
    windows = {
        name: window
        for row in _rows(running)
        if (window := _count(row.get("context_length")))
        for name in (row.get("name"), row.get("model"))
        if isinstance(name, str)
    }

    async def shown(facts: Facts) -> Facts:
        document = _object(await ask.post(f"{origin}/api/show", {"model": facts.id}))
        return _ollama(facts, document, windows.get(facts.id))

    return await _each(models, shown)


def _ollama(facts: Facts, document: Json, allocated: int | None) -> Facts:
    info = _object(document.get("model_info"))
    possible = _count(info.get(f"{info.get('general.architecture')}.context_length"))
    abilities = document.get("capabilities")
    known = abilities if isinstance(abilities, list) else None
    return Facts(
        id=facts.id,
        name=facts.name,
        context_window=allocated or possible,
        input=("text", "image") if known is not None and "vision" in known else ("text",),
        reasoning=None if known is None else "thinking" in known,
        tools=None if known is None else "tools" in known,
    )


PROBES: Final[Mapping[str, Probe]] = {
    "ollama": ollama,
    "lm_studio": lm_studio,
    "llama_cpp": llama_cpp,
}
# How the rows of a list name the program, where the provider is one of the user's own.
OWNERS: Final[Mapping[str, str]] = {
    "library": "ollama",
    "organization_owner": "lm_studio",
    "llamacpp": "llama_cpp",
}

# -- small readers -------------------------------------------------------------------------------


async def _each(
    models: Sequence[Facts], ask: Callable[[Facts], Awaitable[Facts]]
) -> Sequence[Facts]:
    """What is learned of each, a few at a time, in their order."""
    found = list(models)
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(index: int) -> None:
        async with limiter:
            found[index] = await ask(models[index])

    async with anyio.create_task_group() as tasks:
        for index in range(len(found)):
            tasks.start_soon(one, index)
    return found


def _rows(value: object) -> list[Json]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value >= 1 else None


def _first(row: Json, *names: str) -> int | None:
    return next((count for name in names if (count := _count(row.get(name)))), None)
