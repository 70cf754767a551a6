"""The catalogue: which models exist, where, how large and at what price.

One JSON file per provider beside this module, read at first use. Rows are data: a new model of a
known provider is a new row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lemon_ai.providers import PROVIDERS
from lemon_ai.types import Model

_FOLDER = Path(__file__).parent


class Catalog:
    """The built-in rows and those registered on this object."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, Model]] = {}
        self._defaults: dict[str, str] = {}

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
        """The provider's default row, or None for an unknown provider."""
        rows = self._rows(provider)
        return rows.get(self._defaults.get(provider, ""))

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
        """A model behind a given base URL; it speaks chat completions.

        A known id keeps its row's window and price; an unknown one gets the defaults of `Model`
        and no price.
        """
        row = self.get_model(provider, model_id)
        if row is not None:
            return row.model_copy(update={"base_url": base_url, "api": "openai_completions"})
        return Model(
            id=model_id,
            name=model_id,
            api="openai_completions",
            provider=provider,
            base_url=base_url,
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
        self._defaults[provider] = document["default"]
        self._models[provider] = {model.id: model for model in models}
        return self._models[provider]
