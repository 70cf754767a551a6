"""Asking servers which models they have.

Whatever goes wrong leaves the rows of the catalogue as they are: a list is never worth a failure.
Only `first_model_id` raises, because without an answer there is no model to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import anyio

from lemon_ai.catalog import Catalog
from lemon_ai.credentials import same_host
from lemon_ai.errors import AIError
from lemon_ai.model_cache import CachedModels, ModelCache
from lemon_ai.probes import OWNERS, PROBES, Facts, HttpAsker, Probe, listed, owner
from lemon_ai.providers import PROVIDERS
from lemon_ai.transport import Transport, TransportFailure, without_userinfo
from lemon_ai.types import Model

DISCOVERY_TIMEOUT_S: Final = 4.0


class ModelListError(AIError):
    """The server's list of models could not be read; name a model instead."""

    code = "model_list_failed"

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"no model is named and {without_userinfo(url)} gave none: {problem}")


async def first_model_id(transport: Transport, base_url: str, api_key: str | None) -> str:
    """The first id of `GET {base}/models`. Raises ModelListError."""
    url = f"{base_url.rstrip('/')}/models"
    headers = {"accept": "application/json"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    try:
        with anyio.fail_after(DISCOVERY_TIMEOUT_S):
            status, document = await transport.get_json(url, headers)
    except TimeoutError as exc:
        raise ModelListError(url, "no answer in time") from exc
    except TransportFailure as exc:
        raise ModelListError(url, exc.error.message) from exc
    if status != 200:
        raise ModelListError(url, f"HTTP {status}")
    rows = document.get("data") if isinstance(document, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("id"), str) and row["id"]:
            return str(row["id"])
    raise ModelListError(url, "the answer lists no model")


class Discovery:
    """Lists of models as servers give them now, kept for five minutes."""

    def __init__(
        self,
        transport: Transport,
        cache: ModelCache | None = None,
        *,
        timeout_s: float = DISCOVERY_TIMEOUT_S,
    ) -> None:
        self.cache = cache or ModelCache()
        self._transport, self._timeout_s = transport, timeout_s

    async def models(
        self, catalog: Catalog, provider: str, base_url: str, api_key: str | None
    ) -> list[Model]:
        """The provider's models: the catalogue's rows with what the server says of them.

        The table of providers says what the answer does to them; that of any other server replaces
        them. Nothing is raised: without an answer they stay as they are.
        """
        known = catalog.get_models(provider)
        manner = _manner(provider, base_url)
        if manner is None or not base_url:
            return known
        found = await self._found(catalog, provider, base_url, api_key)
        if found is None:
            return known
        ids = {model.id for model in found.models}
        match manner:
            case "replace":
                return list(found.models)
            case "filter":
                return [model for model in known if model.id in ids]
            case _:
                fresh = {model.id: model for model in found.models}
                kept = [fresh.pop(model.id, model) for model in known]
                return [*kept, *fresh.values()]

    async def _found(
        self, catalog: Catalog, provider: str, base_url: str, api_key: str | None
    ) -> CachedModels | None:
        name = f"{provider} at {base_url}"
        found = self.cache.read(name)
        if found is not None:
            return found
        facts: Sequence[Facts] = ()
        with anyio.move_on_after(self._timeout_s):
            ask = HttpAsker(self._transport, api_key)
            document = await ask.get(_list_url(provider, base_url))
            facts = listed(document)
            probe = _probe(provider, owner(document))
            if probe is not None and facts:  # too slow: what the list says is kept
                facts = await probe(ask, _origin(base_url), facts)
        if not facts:
            return None
        models = [_model(catalog, provider, base_url, one) for one in facts]
        whole = _manner(provider, base_url) != "complete"
        return self.cache.write(name, models, authoritative=whole)


def _manner(provider: str, base_url: str) -> str | None:
    """What the answer does to the catalogue's rows; elsewhere than at the vendor's own host those
    say nothing."""
    row = PROVIDERS.get(provider)
    if row is None or not same_host(row.base_url, base_url):
        return "replace"
    return row.lists_models


def _probe(provider: str, program: str) -> Probe | None:
    """How more is asked; a provider of the user's own is known by the program behind it."""
    if provider in PROVIDERS:
        return PROBES.get(provider)
    return PROBES.get(OWNERS.get(program, ""))


def _list_url(provider: str, base_url: str) -> str:
    base = base_url.rstrip("/")
    row = PROVIDERS.get(provider)
    # The base URL of this API ends before the version.
    if row is not None and row.api == "anthropic_messages" and not base.endswith("/v1"):
        base = f"{base}/v1"
    return f"{base}/models"


def _origin(base_url: str) -> str:
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}"


def _model(catalog: Catalog, provider: str, base_url: str, facts: Facts) -> Model:
    """The catalogue's row, or a new one, with what the server says."""
    model = catalog.get_model(provider, facts.id)
    if model is None or model.base_url != base_url:
        model = catalog.endpoint_model(provider, facts.id, base_url)
    window = facts.context_window or model.context_window
    changes = {
        "name": facts.name or model.name,
        "context_window": window,
        "max_tokens": min(facts.max_tokens or model.max_tokens, window),
    }
    for field in ("cost", "input", "reasoning", "tools"):
        value = getattr(facts, field)
        if value is not None:
            changes[field] = value
    return model.model_copy(update=changes)
