"""The models to choose from in a picker: of the providers that can be asked, the newest first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lemon_ai import Catalog, Model
from lemon_core.logs import get_logger

if TYPE_CHECKING:
    from lemon_agent.runtime.model_runtime import ModelRuntime

log = get_logger(__name__)

FALLBACK: Final = ("anthropic", "openai", "google")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of a picker."""

    provider: str
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """A provider with its models, the newest first."""

    provider: str
    models: tuple[ModelEntry, ...]


async def available_catalog(models: ModelRuntime) -> list[ProviderEntry]:
    """The models of the providers that have credentials, providers by name.

    Never raises: when anything fails it is the default models of three well-known providers.
    """
    try:
        table = await models.credentials.table()
        found = []
        for access in [*table.ready, *([table.local] if table.local.is_ready else [])]:
            rows = {row.id: row for row in models.catalog.get_models(access.name)}
            entries = [_entry(row) for row in rows.values()]
            entries += [
                ModelEntry(access.name, model_id, model_id)
                for model_id in access.models
                if model_id not in rows
            ]
            if entries:
                found.append(ProviderEntry(access.name, tuple(sorted_models(entries))))
        return sorted(found, key=lambda entry: entry.provider)
    except Exception:  # a picker that shows little is better than none
        log.exception("catalog.failed")
        return _fallback(models.catalog)


def sorted_models(entries: list[ModelEntry]) -> list[ModelEntry]:
    """The newest and most capable first."""
    return sorted(entries, key=_rank, reverse=True)


def model_spec(entry: ModelEntry) -> str:
    """`provider:id`, which names the model to Lemon."""
    return f"{entry.provider}:{entry.id}"


def model_label(entry: ModelEntry) -> str:
    """`Name (id)`, for people."""
    return f"{entry.name} ({entry.id})"


def _entry(model: Model) -> ModelEntry:
    return ModelEntry(model.provider, model.id, model.name or model.id)


def _rank(entry: ModelEntry) -> tuple[object, ...]:
    text = entry.id.lower()
    # A date in an id is no version: `-20250929` would beat every number.
    numbers = tuple(int(n) for n in re.findall(r"\d+", text) if len(n) < 6)
    return (
        _google_rank(text) if entry.provider.startswith("google") else 0,
        numbers,
        "latest" in text,
        "thinking" in text,
        entry.name,
        entry.id,
    )


def _google_rank(text: str) -> int:
    if "customtools" in text.replace("-", ""):
        return 2
    return 1 if "preview" in text else 0


def _fallback(catalog: Catalog) -> list[ProviderEntry]:
    found = []
    for provider in FALLBACK:
        try:
            row = catalog.default_model(provider)
        except Exception:  # its file may be what failed
            log.exception("catalog.no_default", provider=provider)
            continue
        if row is not None:
            found.append(ProviderEntry(provider, (_entry(row),)))
    return found
