"""Models by name, out of the catalogue: for completion, and how much context each has."""

from __future__ import annotations

from functools import cache


def model_names(current: str | None = None) -> tuple[str, ...]:
    """Every model of the catalogue as `provider:id`, those of the current one's provider first;
    slow at the first call."""
    provider = f"{(current or '').partition(':')[0]}:"
    return tuple(sorted(_names(), key=lambda name: not name.startswith(provider)))


@cache
def _names() -> tuple[str, ...]:
    from lemon_ai.catalog import Catalog, describe  # reads the whole catalogue

    return tuple(f"{row.provider}:{row.id}" for row in describe(Catalog()))


def model_window(model: str) -> int | None:
    """The context window of `provider:id`, or of an id alone, in tokens; None when not known."""
    from lemon_ai.catalog import Catalog  # not needed before a model has answered

    provider, _, name = model.partition(":")
    catalog = Catalog()
    found = catalog.get_model(provider, name) if name else None
    found = found or catalog.find_by_id(model)
    return None if found is None else found.context_window
