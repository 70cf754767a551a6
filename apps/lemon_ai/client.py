"""The client: a connection pool, the adapters and the embedded model's server, in one owner.

    async with Client() as client:
        async with client.stream(model, context) as stream:
            async for event in stream: ...

Nothing is opened before the first call. The module functions `stream` and `complete` are the same
for a single call and open a client of their own.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial as bind
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
from pydantic import SecretStr

from lemon_ai.adapters.base import Adapter, AdapterRequest
from lemon_ai.adapters.registry import APIS, builtin_adapter
from lemon_ai.adapters.streaming import failed
from lemon_ai.admission import UNLIMITED, Admission, Limits
from lemon_ai.catalog import Catalog
from lemon_ai.credentials import (
    MissingBaseUrl,
    MissingKey,
    base_url_of,
    resolve_api_key,
    resolve_base_url,
    same_host,
)
from lemon_ai.errors import UnknownApiError, error_of_text, redact
from lemon_ai.event_stream import Batches, EventStream
from lemon_ai.events import Event
from lemon_ai.local_server import LOCAL_PROVIDER, LocalModelServer, LocalServerError
from lemon_ai.partial import PartialMessage
from lemon_ai.providers import PROVIDERS
from lemon_ai.telemetry import Telemetry, trace_headers, without_trace_headers
from lemon_ai.transport import Transport
from lemon_ai.types import AssistantMessage, Context, Model, StreamOptions, now_ms

if TYPE_CHECKING:
    from lemon_ai.discovery import Discovery

log = logging.getLogger(__name__)


class Client:
    """Every model call goes through one of these; leave it to close its connections.

    `adapters` adds to or replaces the built-in ones by api id; `env` is the fallback for keys
    (the process environment by default). A `local_server` that is passed in stays its owner's to
    close; otherwise the client starts and ends its own when the provider `local` is used.
    `admission` says which calls may go out; by default vendors have limits and any other server
    only a circuit breaker. `telemetry` is told about calls, refusals and breakers; an `admission`
    that is passed in tells whom it was made for.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        transport: Transport | None = None,
        local_server: LocalModelServer | None = None,
        admission: Admission | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.telemetry = telemetry or Telemetry()
        self.admission = admission or Admission(limits_of=default_limits, emit=self.telemetry.emit)
        self._env = os.environ if env is None else env
        self._adapters = dict(adapters or {})
        self._transport = transport or Transport(env=self._env)
        self._discovery: Discovery | None = None
        self._owns_local = local_server is None
        self._local = local_server or LocalModelServer()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections and the client's own local server. May be called twice."""
        try:
            await self._transport.aclose()
        finally:
            if self._owns_local:
                await self._local.aclose()

    def stream(
        self, model: Model, context: Context, options: StreamOptions | None = None
    ) -> EventStream:
        """A stream of one answer; the request goes out with the first pull.

        Raises UnknownApiError for an api that no adapter speaks, and entering the stream raises
        AdmissionError for a call that may not go out now; every other failure is an event.
        """
        adapter = self._adapter(model.api)
        options = options or StreamOptions()
        traced = trace_headers(model, options)
        if traced:
            model, options = without_trace_headers(model), without_trace_headers(options)
        batches = bind(self._events, adapter, model, context, options)
        return EventStream(
            self._watched(batches, model, context, traced) or batches,
            PartialMessage(model, now_ms()),
            timeout_ms=options.stream_timeout_ms,
            admit=lambda: self.admission.enter(self.admission_name(model, options)),
        )

    def _watched(
        self,
        batches: Callable[[PartialMessage], Batches],
        model: Model,
        context: Context,
        traced: Mapping[str, str],
    ) -> Callable[[PartialMessage], Batches] | None:
        """The same batches under the eyes of the diagnostics, where the environment asks for
        them."""
        if not self._env.get("LEMON_AI_PROMPT_DIAGNOSTICS"):
            return None
        from lemon_ai.diagnostics import Diagnostics

        diagnostics = Diagnostics.of(self._env, self.telemetry)
        if diagnostics is None:
            return None
        return lambda partial: diagnostics.watch(batches(partial), model, context, traced)

    def admission_name(self, model: Model, options: StreamOptions | None = None) -> str:
        """What `admission` calls the place that this call goes to: the provider, with the base URL
        where that is not the vendor's own."""
        row = PROVIDERS.get(model.provider)
        try:
            base_url = resolve_base_url(model, options or StreamOptions(), self._env)
        except MissingBaseUrl:
            return model.provider
        if row is None or not base_url or same_host(row.base_url, base_url):
            return model.provider
        return f"{model.provider} at {base_url}"

    async def complete(
        self, model: Model, context: Context, options: StreamOptions | None = None
    ) -> AssistantMessage:
        """The final message; raises ModelError when the stream ends in an error."""
        async with self.stream(model, context, options) as events:
            return await events.result()

    async def first_model(
        self, base_url: str, *, provider: str = "openai", api_key: str | None = None
    ) -> str:
        """The first id of `GET {base}/models`, for a base URL with no model named.

        Raises ModelListError when the server does not answer with a list.
        """
        from lemon_ai.discovery import first_model_id  # nobody asks who names a model

        options = StreamOptions(api_key=None if api_key is None else SecretStr(api_key))
        probe = Model(id="?", api="openai_completions", provider=provider, base_url=base_url)
        return await first_model_id(
            self._transport, base_url, resolve_api_key(probe, options, self._env)
        )

    async def discover(
        self,
        catalog: Catalog,
        provider: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> list[Model]:
        """A provider's models with what its server says of them, believed for five minutes.

        Without `base_url` the environment's is asked, else the vendor's own. A server that cannot
        be asked leaves the rows of the catalogue as they are.
        """
        where = base_url or base_url_of(provider, self._env)
        if not where and (models := catalog.get_models(provider)):
            where = models[0].base_url
        probe = Model(id="?", api="openai_completions", provider=provider, base_url=where)
        options = StreamOptions(api_key=None if api_key is None else SecretStr(api_key))
        try:
            key = resolve_api_key(probe, options, self._env)
        except MissingKey:
            key = None  # some lists are public
        if self._discovery is None:
            from lemon_ai.discovery import Discovery

            self._discovery = Discovery(self._transport)
        return await self._discovery.models(catalog, provider, where, key)

    async def list_models(self, catalog: Catalog, discover: Sequence[str] = ()) -> list[Model]:
        """All models, in the order of preference; the providers in `discover` are asked."""
        found: dict[str, list[Model]] = {}

        async def ask(provider: str) -> None:
            found[provider] = await self.discover(catalog, provider)

        async with anyio.create_task_group() as tasks:
            for name in discover:
                tasks.start_soon(ask, name)
        order = dict.fromkeys([*catalog.get_providers(), *discover])
        lists = (found[name] if name in found else catalog.get_models(name) for name in order)
        return [model for models in lists for model in models]

    async def _events(
        self,
        adapter: Adapter,
        model: Model,
        context: Context,
        options: StreamOptions,
        partial: PartialMessage,
    ) -> AsyncGenerator[Sequence[Event], None]:
        try:
            base_url, api_key = await self._endpoint(model, options)
        except (MissingBaseUrl, MissingKey, LocalServerError) as exc:
            yield [failed(partial, exc.info())]
            return
        request = AdapterRequest(
            model=model,
            context=context,
            options=options,
            base_url=base_url,
            api_key=api_key,
            partial=partial,
            transport=self._transport,
            env=self._env,
        )
        async with aclosing(adapter.events(request)) as batches:
            try:
                async for batch in batches:
                    yield batch
            except Exception as exc:  # an adapter's fault must reach its consumer as an event
                trace = redact("".join(traceback.format_exception(exc)), api_key)
                log.error("adapter.raised", extra={"api": model.api, "traceback": trace})
                error = error_of_text(redact(str(exc) or type(exc).__name__, api_key))
                yield [failed(partial, error)]

    async def _endpoint(self, model: Model, options: StreamOptions) -> tuple[str, str | None]:
        """Base URL and key of a call; they belong together."""
        if model.provider == LOCAL_PROVIDER and not model.base_url:
            endpoint = await self._local.endpoint()
            return endpoint.base_url, endpoint.api_key
        base_url = resolve_base_url(model, options, self._env)
        if base_url != model.base_url:
            model = model.model_copy(update={"base_url": base_url})
        return base_url, resolve_api_key(model, options, self._env)

    def offer_adapter(self, api: str, adapter: Adapter) -> None:
        """Have `adapter` speak a wire API of its own from the next call on.

        Raises ValueError for an API that is built in.
        """
        if api in APIS:
            raise ValueError(f"the API {api} is built in")
        self._adapters[api] = adapter

    def withdraw_adapter(self, api: str) -> None:
        """Take back what `offer_adapter` gave; calls under way end as they are."""
        if api not in APIS:
            self._adapters.pop(api, None)

    def _adapter(self, api: str) -> Adapter:
        adapter = self._adapters.get(api) or builtin_adapter(api)
        if adapter is None:
            raise UnknownApiError(api, list({*APIS, *self._adapters}))
        self._adapters[api] = adapter  # it caches what its calls have in common
        return adapter


def default_limits(name: str) -> Limits:
    """Limits for vendors at their own hosts; a server of one's own, and one on this machine, takes
    what it can."""
    row = PROVIDERS.get(name)
    is_vendor = row is not None and row.id != LOCAL_PROVIDER and not row.is_server
    return Limits() if is_vendor else UNLIMITED


def stream(model: Model, context: Context, options: StreamOptions | None = None) -> EventStream:
    """`Client.stream` for a single call, with a client of its own that closes with the stream."""
    client = Client()
    events = client.stream(model, context, options)
    events.on_close(client.aclose)
    return events


async def complete(
    model: Model, context: Context, options: StreamOptions | None = None
) -> AssistantMessage:
    """`Client.complete` for a single call, with a client of its own."""
    async with Client() as client:
        return await client.complete(model, context, options)
