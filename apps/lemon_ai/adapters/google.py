"""`google_generative_ai` and `google_vertex`: Gemini at AI Studio and on Google Cloud."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import quote, urlsplit

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.google_request import build_body
from lemon_ai.adapters.google_stream import GoogleStreamParser, read_google_error
from lemon_ai.adapters.streaming import (
    NOTHING_TO_SEND,
    WireCall,
    fail_only,
    failed,
    merge_headers,
    stream_call,
)
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.adapters.vertex_tokens import TokenError, VertexTokens
from lemon_ai.credentials import options_for
from lemon_ai.events import Event
from lemon_ai.types import ErrorInfo

PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT")
LOCATION_VARIABLES = ("GOOGLE_CLOUD_LOCATION",)
_MULTI_REGIONS = frozenset({"us", "eu"})
_NAME = re.compile(r"[a-z0-9-]+")
_VERSION = re.compile(r"/v\d\w*(?:/|$)")


class GoogleAdapter:
    """`POST {base}/models/{id}:streamGenerateContent` with server-sent events."""

    def __init__(self) -> None:
        self._tools = ToolCache()

    def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Batches of events; see `Adapter`."""
        body = build_body(request, self._tools)
        if body is None:
            return fail_only(request.partial, NOTHING_TO_SEND)
        key = {"x-goog-api-key": request.api_key} if request.api_key else {}
        base = _with_version(request.base_url, "v1beta")
        return _stream(request, body, f"{base}/models/{_method(request)}", key)


class VertexAdapter:
    """`POST {base}/publishers/google/models/{id}:streamGenerateContent`, with a bearer token."""

    def __init__(self) -> None:
        self._tools = ToolCache()
        self._tokens = VertexTokens()

    def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Batches of events; see `Adapter`."""
        body = build_body(request, self._tools)
        if body is None:
            return fail_only(request.partial, NOTHING_TO_SEND)
        base = vertex_base(request)
        if isinstance(base, ErrorInfo):
            return fail_only(request.partial, base)
        return self._call(request, body, f"{base}/publishers/google/models/{_method(request)}")

    async def _call(
        self, request: AdapterRequest, body: bytes, url: str
    ) -> AsyncGenerator[Sequence[Event], None]:
        try:
            token = await self._tokens.get(request)
        except TokenError as exc:
            yield [failed(request.partial, exc.error)]
            return
        headers = {"authorization": f"Bearer {token.value}"}
        if token.quota_project:
            headers["x-goog-user-project"] = token.quota_project
        async with aclosing(_stream(request, body, url, headers)) as batches:
            async for batch in batches:
                yield batch


def _stream(
    request: AdapterRequest, body: bytes, url: str, headers: Mapping[str, str]
) -> AsyncGenerator[Sequence[Event], None]:
    fixed = {"content-type": "application/json", "accept": "text/event-stream", **headers}
    call = WireCall(
        url=url,
        body=body,
        headers=merge_headers(fixed, request.model.headers, request.options.headers),
        read_error=read_google_error,
    )
    return stream_call(request, call, lambda: GoogleStreamParser(request.partial))


def _method(request: AdapterRequest) -> str:
    return f"{quote(request.model.id, safe='')}:streamGenerateContent?alt=sse"


def _with_version(base_url: str, version: str) -> str:
    """The base URL, with the API's version where its path has none."""
    base = base_url.rstrip("/")
    return base if _VERSION.search(urlsplit(base).path) else f"{base}/{version}"


def vertex_base(request: AdapterRequest) -> str | ErrorInfo:
    """The URL up to the location. A base URL that names project and location needs no others."""
    base = request.base_url.rstrip("/")
    if "/projects/" in urlsplit(base).path:
        return base
    project = _setting(request, "project", PROJECT_VARIABLES)
    location = _setting(request, "location", LOCATION_VARIABLES)
    if not project:
        return _missing("project", PROJECT_VARIABLES[0])
    if not location or not _NAME.fullmatch(location):  # it becomes a part of the host's name
        return _missing("location", LOCATION_VARIABLES[0])
    host = _with_version(base or f"https://{vertex_host(location)}", "v1")
    return f"{host}/projects/{quote(project, safe='')}/locations/{quote(location, safe='')}"


def vertex_host(location: str) -> str:
    """The host of a region, a multi-region or `global`."""
    if location == "global":
        return "aiplatform.googleapis.com"
    if location in _MULTI_REGIONS:
        return f"aiplatform.{location}.rep.googleapis.com"
    return f"{location}-aiplatform.googleapis.com"


def _setting(request: AdapterRequest, name: str, variables: Sequence[str]) -> str | None:
    given = getattr(request.options, name) or options_for(request.model, request.options).get(name)
    return given or next((request.env[v] for v in variables if request.env.get(v)), None)


def _missing(name: str, variable: str) -> ErrorInfo:
    return ErrorInfo(
        category="client",
        code=f"missing_{name}",
        message=f"no Google Cloud {name} for Vertex: set {variable} or pass {name}",
    )
