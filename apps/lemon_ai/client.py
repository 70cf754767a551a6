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
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial as bind
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from lemon_ai.adapters.base import Adapter, AdapterRequest
from lemon_ai.adapters.openai_chat import OpenAIChatAdapter
from lemon_ai.adapters.streaming import failed
from lemon_ai.credentials import MissingKey, resolve_api_key
from lemon_ai.discovery import first_model_id
from lemon_ai.errors import UnknownApiError, error_of_text, redact
from lemon_ai.event_stream import EventStream
from lemon_ai.events import Event
from lemon_ai.local_server import LOCAL_PROVIDER, LocalModelServer, LocalServerError
from lemon_ai.partial import PartialMessage
from lemon_ai.transport import Transport
from lemon_ai.types import AssistantMessage, Context, Model, StreamOptions, now_ms

log = logging.getLogger(__name__)


def builtin_adapters() -> dict[str, Adapter]:
    """A fresh adapter for each wire API spoken, by api id."""
    return {"openai_completions": OpenAIChatAdapter()}


class Client:
    """Every model call goes through one of these; leave it to close its connections.

    `adapters` adds to or replaces the built-in ones by api id; `env` is the fallback for keys
    (the process environment by default). A `local_server` that is passed in stays its owner's to
    close; otherwise the client starts and ends its own when the provider `local` is used.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        transport: Transport | None = None,
        local_server: LocalModelServer | None = None,
    ) -> None:
        self._env = os.environ if env is None else env
        self._adapters = {**builtin_adapters(), **(adapters or {})}
        self._transport = transport or Transport(env=self._env)
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

        Raises UnknownApiError for an api that no adapter speaks; every other failure is an event.
        """
        adapter = self._adapters.get(model.api)
        if adapter is None:
            raise UnknownApiError(model.api, list(self._adapters))
        options = options or StreamOptions()
        return EventStream(
            bind(self._events, adapter, model, context, options),
            PartialMessage(model, now_ms()),
            timeout_ms=options.stream_timeout_ms,
        )

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
        options = StreamOptions(api_key=None if api_key is None else SecretStr(api_key))
        probe = Model(id="?", api="openai_completions", provider=provider, base_url=base_url)
        return await first_model_id(
            self._transport, base_url, resolve_api_key(probe, options, self._env)
        )

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
        except (MissingKey, LocalServerError) as exc:
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
        return model.base_url, resolve_api_key(model, options, self._env)


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
