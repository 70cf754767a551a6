"""The catalogue: which models exist, where, how large and at what price.

One JSON file per provider beside this module, read at first use. Rows are data: a new model of a
known provider is a new row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lemon_ai.providers import PROVIDERS
from lemon_ai.types import Model, ModelCost

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class ModelRow:
    """What may be shown of a model. Prices are dollars per million tokens, None when unknown.

    `is_default` tells the row that answers when only the provider is named.
    """

    provider: str
    id: str
    name: str
    context_window: int
    max_tokens: int
    input_price: float | None
    output_price: float | None
    vision: bool
    thinking: bool
    is_default: bool


def supports_vision(model: Model) -> bool:
    """Whether the model takes images."""
    return "image" in model.input


def supports_reasoning(model: Model) -> bool:
    """Whether the model can be asked to think."""
    return model.reasoning


def supports_xhigh(model: Model) -> bool:
    """Whether the level `xhigh` is more than `high` for this model."""
    return model.reasoning and not {"xhigh", "max"}.isdisjoint(model.reasoning_levels)


def models_equal(left: Model | None, right: Model | None) -> bool:
    """Whether both are the same model of the same provider, wherever they are served."""
    if left is None or right is None:
        return False
    return (left.provider, left.id) == (right.provider, right.id)


def describe(
    catalog: Catalog,
    *,
    provider: str | None = None,
    vision: bool = False,
    thinking: bool = False,
) -> list[ModelRow]:
    """The rows of one provider, or of all in the order of preference; `vision` and `thinking` leave
    out the models that cannot."""
    names = [provider] if provider is not None else catalog.get_providers()
    return [
        _row(model, catalog.default_model(name))
        for name in names
        for model in catalog.get_models(name)
        if (supports_vision(model) or not vision) and (supports_reasoning(model) or not thinking)
    ]


def _row(model: Model, default: Model | None) -> ModelRow:
    return ModelRow(
        provider=model.provider,
        id=model.id,
        name=model.name or model.id,
        context_window=model.context_window,
        max_tokens=model.max_tokens,
        input_price=None if model.cost is None else model.cost.input,
        output_price=None if model.cost is None else model.cost.output,
        vision=supports_vision(model),
        thinking=supports_reasoning(model),
        is_default=models_equal(model, default),
    )


class Catalog:
    """The built-in rows and those registered on this object."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, Model]] = {}
        self._defaults: dict[str, str | None] = {}

    def get_providers(self) -> list[str]:
        """Provider ids, in the order in which they are preferred."""
        return [*PROVIDERS, *(p for p in self._models if p not in PROVIDERS)]

    def get_models(self, provider: str) -> list[Model]:
        """The provider's models in catalogue order; empty for an unknown provider."""
        return list(self._rows(provider).values())

    def get_model_ids(self, provider: str) -> list[str]:
        """The ids of the provider's models in catalogue order."""
        return list(self._rows(provider))

    def get_model(self, provider: str, model_id: str) -> Model | None:
        """One model, or None."""
        return self._rows(provider).get(model_id)

    def default_model(self, provider: str) -> Model | None:
        """The provider's default row; None for an unknown provider, and for a server of one's own,
        which only knows itself which models it has."""
        rows = self._rows(provider)
        return rows.get(self._defaults.get(provider) or "")

    def find_by_id(self, model_id: str) -> Model | None:
        """The first model with this id, by provider order."""
        for provider in self.get_providers():
            model = self.get_model(provider, model_id)
            if model is not None:
                return model
        return None

    def register_models(self, provider: str, models: Iterable[Model]) -> None:
        """Add models, for example from a user's configuration; equal ids are replaced."""
        self._rows(provider)
        self._models.setdefault(provider, {}).update({model.id: model for model in models})

    def endpoint_model(self, provider: str, model_id: str, base_url: str) -> Model:
        """A model behind a given base URL; it speaks chat completions, or what the provider of a
        known vendor speaks elsewhere.

        A known id keeps its row's window and price; an unknown one gets the defaults of `Model`
        and no price, or the price of a server of one's own: nothing.
        """
        vendor = PROVIDERS.get(provider)
        api = (vendor and (vendor.api_elsewhere or vendor.api)) or "openai_completions"
        row = self.get_model(provider, model_id)
        if row is not None:
            return row.model_copy(update={"base_url": base_url, "api": api})
        return Model(
            id=model_id,
            name=model_id,
            api=api,
            provider=provider,
            base_url=base_url,
            cost=ModelCost() if vendor is not None and vendor.is_server else None,
        )

    def _rows(self, provider: str) -> dict[str, Model]:
        rows = self._models.get(provider)
        if rows is None and provider in PROVIDERS:
            rows = self._load(provider)
        return rows or {}

    def _load(self, provider: str) -> dict[str, Model]:
        file = _FOLDER / f"{provider}.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        row = PROVIDERS[provider]
        fixed = {"provider": provider, "api": row.api, "base_url": row.base_url}
        models = [Model.model_validate({**fixed, **entry}) for entry in document["models"]]
        self._defaults[provider] = document["default"]  # null for a server of one's own
        self._models[provider] = {model.id: model for model in models}
        return self._models[provider]
