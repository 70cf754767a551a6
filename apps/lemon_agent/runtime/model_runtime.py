"""The models of one process: the client, the providers that are ready, and which one answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from lemon_agent.runtime.credentials import ProviderAccess, ProviderTable
from lemon_agent.runtime.routing import ModelChoice, choose_model
from lemon_ai import Catalog, Client, Context, EventStream, Model, StreamOptions
from lemon_core.clock import Clock, SystemClock
from lemon_core.config.model import Defaults
from lemon_core.config.model import Provider as ProviderConfig

if TYPE_CHECKING:
    from lemon_core.runtime import Runtime

# How long a server's answer to "which models have you" is believed.
FIRST_MODEL_FRESH_MS: Final = 300_000


class ModelRuntime:
    """`async with` it, or `aclose()` it: that closes the connections and the embedded model.

    Nothing is opened, asked or started before the first choice or call that needs it.
    """

    def __init__(
        self,
        *,
        defaults: Defaults,
        providers: Mapping[str, ProviderConfig],
        client: Client | None = None,
        catalog: Catalog | None = None,
        table: ProviderTable | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._defaults = defaults
        self._providers = table or ProviderTable(providers)
        self._client = client or Client()
        self._catalog = catalog or Catalog()
        self._clock = clock or SystemClock()
        self._first_models: dict[str, tuple[int, str]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close what was opened. May be called twice."""
        await self._client.aclose()

    async def choose_model(self, spec: str | None = None) -> ModelChoice:
        """The model that answers; `spec` is `provider:id` or an id.

        Raises `UnknownModel`, `NoModel`, or lemon_ai's `ModelListError`.
        """
        return await choose_model(
            spec, self._defaults, self._providers, self._catalog, self._first_model
        )

    def stream(self, model: Model, context: Context, options: StreamOptions) -> EventStream:
        """One model call; the `stream_fn` of a loop."""
        return self._client.stream(model, context, options)

    async def get_api_key(self, provider: str) -> str | None:
        """The key of a provider, or None; the `get_api_key` of a loop."""
        access = self._providers.get(provider)
        return None if access is None else access.api_key

    async def _first_model(self, access: ProviderAccess) -> str:
        assert access.base_url is not None  # a vendor's default is a row of the catalogue
        now = self._clock.monotonic_ms()
        until, model_id = self._first_models.get(access.base_url, (now, ""))
        if until <= now:
            model_id = await self._client.first_model(
                access.base_url, provider=access.name, api_key=access.api_key
            )
            self._first_models[access.base_url] = (now + FIRST_MODEL_FRESH_MS, model_id)
        return model_id


def model_runtime(runtime: Runtime) -> ModelRuntime:
    """The models of a runtime: `runtime.service(model_runtime)`; the component closes them."""
    return ModelRuntime(
        defaults=runtime.config.defaults,
        providers=runtime.config.providers,
        client=Client(env=runtime.environ),
        clock=runtime.clock,
    )
