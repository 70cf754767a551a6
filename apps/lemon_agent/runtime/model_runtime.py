"""The models of one process: the client, the providers that are ready, and which one answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from pydantic import SecretStr

from lemon_agent.runtime.choice import ModelChoice, choose_model, default_of, known_model
from lemon_agent.runtime.credentials import Credential, Credentials, OAuthResolver
from lemon_agent.runtime.health import CredentialHealth, PoolRotator, SessionPins
from lemon_agent.runtime.names import split_spec
from lemon_agent.runtime.options import needs_options, with_provider_options
from lemon_agent.runtime.providers import ProviderAccess, ProviderTable
from lemon_agent.runtime.routing import Params, RoutingPlan, plan
from lemon_agent.runtime.secret_cache import SecretCache, SecretStore
from lemon_agent.runtime.settings import ModelSettings
from lemon_agent.runtime.status import ProviderStatus, provider_states
from lemon_ai import AIError, Catalog, Client, Context, EventStream, Model, StreamOptions
from lemon_ai.adapters.base import Adapter
from lemon_ai.adapters.registry import APIS
from lemon_core.clock import Clock, SystemClock
from lemon_core.config.model import Defaults
from lemon_core.config.model import Provider as ProviderConfig
from lemon_core.config.provider_routing import ProviderRouting

# How long a server's answer to "which models have you" is believed.
FIRST_MODEL_FRESH_MS: Final = 300_000


class ModelRuntime:
    """`async with` it, or `aclose()` it: that closes the connections and the embedded model.

    Nothing is opened, asked or started before the first choice or call that needs it. `settings`,
    where given, is asked at each use, so that a changed configuration counts at once; otherwise
    `defaults`, `providers` and `routing` are the configuration.
    """

    def __init__(
        self,
        *,
        defaults: Defaults | None = None,
        providers: Mapping[str, ProviderConfig] | None = None,
        routing: ProviderRouting | None = None,
        settings: Callable[[], ModelSettings] | None = None,
        secrets: SecretStore | None = None,
        oauth: OAuthResolver | None = None,
        client: Client | None = None,
        catalog: Catalog | None = None,
        table: ProviderTable | None = None,
        clock: Clock | None = None,
    ) -> None:
        fixed = ModelSettings(defaults or Defaults(), providers or {}, routing or ProviderRouting())
        self._read = settings or (lambda: fixed)
        self._seen: tuple[ModelSettings, ProviderTable] | None = None
        if table is not None:
            self._seen = (self._read(), table)
        self._client = client or Client()
        self._catalog = catalog or Catalog()
        self._clock = clock or SystemClock()
        self._first_models: dict[str, tuple[int, str]] = {}
        self.health = CredentialHealth(self._clock)
        self.rotator = PoolRotator(self._clock)
        self.pins = SessionPins(self._clock)
        self.credentials = Credentials(
            self._read,
            self._table,
            SecretCache(secrets, self._clock),
            self.health,
            self.rotator,
            oauth=oauth,
        )

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

    # -- which model -------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The models that are known."""
        return self._catalog

    async def choose_model(self, spec: str | None = None) -> ModelChoice:
        """The model that answers; `spec` is `provider:id` or an id.

        Raises `UnknownModel`, `NoModel`, lemon_ai's `ModelListError`, or core's `StoreError`.
        """
        defaults, table = self._read().defaults, self._table()
        if not _names_provider(spec, defaults, table):
            # Who is ready decides, and the stored secrets have a say in that.
            table = await self.credentials.table()
        return await choose_model(spec, defaults, table, self._catalog, self._first_model)

    async def plan(self, params: Params, *, session_id: str | None = None) -> RoutingPlan:
        """Who may answer in which order, breakers and turns counted."""
        settings = self._read()
        states = await provider_states(self.credentials, settings)
        return plan(
            params,
            settings,
            states,
            is_open=self._is_open,
            rotator=self.rotator,
            rotation_key=session_id,
        )

    @property
    def status(self) -> ProviderStatus:
        """What may be shown of the providers."""
        return ProviderStatus(self.credentials, self._read())

    # -- calls -------------------------------------------------------------------------------

    def stream(self, model: Model, context: Context, options: StreamOptions) -> EventStream:
        """One model call; the `stream_fn` of a loop.

        With routing configured, another credential or provider answers when one does not; the
        answer's `provider` and `model` say who did. A call's `session_id` keeps it where it is.
        """
        settings = self._read()
        access = self._table().get(model.provider)
        plain = access is None or not needs_options(access.name, access.row)
        if plain and not settings.has_alternatives:
            return self._client.stream(model, context, options)
        from lemon_agent.failover import with_failover

        session_id = options.session_id

        async def candidates(asked: Model) -> Sequence[Model]:
            return await self._candidates(asked, session_id)

        async def credentials(provider: str) -> Sequence[Credential]:
            return await self.credentials.list_api_keys(provider, session_id=session_id)

        stream = with_failover(
            self._client.stream,
            candidates,
            credentials,
            health=self.health,
            pins=self.pins,
            session_id=session_id,
        )
        return stream(model, context, options)

    async def get_api_key(self, provider: str) -> str | None:
        """The key of a provider, or None; the `get_api_key` of a loop."""
        return await self.credentials.get_api_key(provider)

    async def build_stream_options(self, model: Model, options: StreamOptions) -> StreamOptions:
        """The options with the key and the settings that are configured for the model's provider.

        What the options say already stays as it is.
        """
        found = await self.credentials.list_api_keys(model.provider)
        if not found:
            return options
        filled = with_provider_options(options, model, found[-1].options)
        if options.api_key is not None or found[0].api_key is None:
            return filled
        return filled.model_copy(update={"api_key": SecretStr(found[0].api_key)})

    # -- wire APIs ---------------------------------------------------------------------------

    def has_builtin_api(self, api: str) -> bool:
        """Whether lemon_ai speaks this wire API by itself."""
        return api in APIS

    def offer_api(self, api: str, adapter: Adapter) -> None:
        """Have `adapter` speak a wire API that a `[providers.<name>]` block may name as its `api`.

        Raises ValueError for one that is built in.
        """
        self._client.offer_adapter(api, adapter)

    def withdraw_api(self, api: str) -> None:
        """Take back what `offer_api` gave."""
        self._client.withdraw_adapter(api)

    # -- inside ------------------------------------------------------------------------------

    def _table(self) -> ProviderTable:
        settings = self._read()
        if self._seen is None or self._seen[0] is not settings:
            table = ProviderTable(
                settings.providers,
                environ=settings.environ,
                foreign_urls=settings.foreign_urls,
            )
            self._seen = (settings, table)
        return self._seen[1]

    async def _candidates(self, model: Model, session_id: str | None) -> Sequence[Model]:
        """The models that may answer instead of one, in the order of the plan."""
        if not self._read().routing.enabled:
            return [model]
        found = await self.plan({"provider": model.provider}, session_id=session_id)
        models: list[Model] = []
        for candidate in found.candidates:
            if candidate.role == "primary" and (candidate.selectable or not found.selected):
                models.append(model)
            elif candidate.selectable:
                other = await self._stand_in(candidate.provider, model)
                if other is not None:
                    models.append(other)
        return models or [model]

    async def _stand_in(self, provider: str, model: Model) -> Model | None:
        """The same model at another provider, else what that one answers with."""
        table = await self.credentials.table()
        access = table.get(provider)
        if access is None:
            return None
        same = known_model(access, model.id, self._catalog)
        if same is not None:
            return same
        try:
            return await default_of(access, self._catalog, self._first_model)
        except AIError:  # a server that does not say what it has cannot stand in
            return None

    def _is_open(self, provider: str) -> bool:
        access = self._table().get(provider)
        at = access.base_url if access is not None else None
        name = provider
        if access is not None and at is not None:
            place = Model(id="?", api=access.api, provider=access.name, base_url=at)
            name = self._client.admission_name(place)
        return self._client.admission.is_open(name)

    async def _first_model(self, access: ProviderAccess) -> str:
        assert access.base_url is not None  # a vendor's default is a row of the catalogue
        now = self._clock.monotonic_ms()
        until, model_id = self._first_models.get(access.base_url, (now, ""))
        if until <= now:
            model_id = await self._client.first_model(
                access.base_url,
                provider=access.name,
                api_key=await self.get_api_key(access.name),
            )
            self._first_models[access.base_url] = (now + FIRST_MODEL_FRESH_MS, model_id)
        return model_id


def _names_provider(spec: str | None, defaults: Defaults, table: ProviderTable) -> bool:
    """Whether it is said who answers, so that nobody else's readiness matters."""
    if spec is not None and spec.strip():
        return split_spec(spec, table.names)[0] is not None
    led = split_spec(defaults.model, table.names)[0] if defaults.model else None
    access = table.get(led or defaults.provider or "")
    return access is not None and access.is_ready
