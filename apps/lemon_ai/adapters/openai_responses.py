"""`openai_responses` and `azure_openai_responses`: OpenAI's Responses API, at OpenAI, at Azure, and
at the servers that speak it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from urllib.parse import quote, urlsplit

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.openai_responses_request import build_body
from lemon_ai.adapters.openai_responses_stream import ResponsesStreamParser
from lemon_ai.adapters.streaming import (
    NOTHING_TO_SEND,
    WireCall,
    error_reader,
    fail_only,
    merge_headers,
    stream_call,
)
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.compat import dialect_of
from lemon_ai.credentials import options_for
from lemon_ai.events import Event

AZURE_API_VERSION = "v1"
_AZURE_HOSTS = (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com")
_AZURE_PATH = "/openai/v1"
_VERSION = re.compile(r"/v\d+(?:/|$)")


class OpenAIResponsesAdapter:
    """`POST {base}/responses` with server-sent events."""

    def __init__(self) -> None:
        self._tools = ToolCache()

    def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Batches of events; see `Adapter`."""
        body = build_body(request, self.model_name(request), self._tools)
        if body is None:
            return fail_only(request.partial, NOTHING_TO_SEND)
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if request.api_key:
            headers |= self.key_header(request.api_key)
        call = WireCall(
            url=self.url(request),
            body=body,
            headers=merge_headers(headers, request.model.headers, request.options.headers),
            read_error=error_reader(dialect_of(request.model, request.base_url)),
        )
        tier = request.options.service_tier
        return stream_call(request, call, lambda: ResponsesStreamParser(request.partial, tier))

    def url(self, request: AdapterRequest) -> str:
        """Where the request goes."""
        base = request.base_url.rstrip("/")
        has_version = _VERSION.search(urlsplit(base).path)
        return f"{base}/responses" if has_version else f"{base}/v1/responses"

    def model_name(self, request: AdapterRequest) -> str:
        """What the request calls the model."""
        return request.model.id

    def key_header(self, key: str) -> Mapping[str, str]:
        """The header that carries the key."""
        return {"authorization": f"Bearer {key}"}


class AzureResponsesAdapter(OpenAIResponsesAdapter):
    """The same at Azure, where a model is called by its deployment.

    `provider_options` for the provider or the api: `deployment_name`, `deployment_name_map`
    (a mapping, or `model=deployment,…`) and `api_version`; for the provider alone `base_url` or
    `resource_name`.
    """

    def url(self, request: AdapterRequest) -> str:
        """Where the request goes."""
        base = request.base_url.rstrip("/")
        parts = urlsplit(base)
        if (parts.hostname or "").endswith(_AZURE_HOSTS) and not parts.path.endswith(_AZURE_PATH):
            base = base.removesuffix("/openai") + _AZURE_PATH
        given = options_for(request.model, request.options)
        version = given.get("api_version") or request.env.get("AZURE_OPENAI_API_VERSION")
        return f"{base}/responses?api-version={quote(str(version or AZURE_API_VERSION), safe='')}"

    def model_name(self, request: AdapterRequest) -> str:
        """The model's deployment."""
        given = options_for(request.model, request.options)
        if given.get("deployment_name"):
            return str(given["deployment_name"])
        names = given.get("deployment_name_map")
        if names is None:
            names = request.env.get("AZURE_OPENAI_DEPLOYMENT_NAME_MAP", "")
        return _deployments(names).get(request.model.id, request.model.id)

    def key_header(self, key: str) -> Mapping[str, str]:
        """The header that carries the key."""
        return {"api-key": key}


def _deployments(names: object) -> Mapping[str, str]:
    if isinstance(names, Mapping):
        return {str(model): str(deployment) for model, deployment in names.items()}
    pairs = (entry.partition("=") for entry in str(names).split(","))
    return {model.strip(): name.strip() for model, _, name in pairs if name.strip()}
