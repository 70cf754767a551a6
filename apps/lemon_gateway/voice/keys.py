"""The keys of a call's services, looked up when they are needed: a key stored now counts now.

A service's key: the secret that the configuration names, else the secret of the usual name, else
the plain value of the configuration, else the variable. A model's key: the variable, else the
configuration, else a secret; it goes to the base URL that was set in the same place, or to the
vendor's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from lemon_core.config.ingress import GatewayVoice
from lemon_core.config.model import LemonConfig, Provider
from lemon_core.logs import get_logger
from lemon_core.secrets import Secrets, SecretsError
from lemon_gateway.ingress import credential

ServiceKey = Literal[
    "twilio_account_sid", "twilio_auth_token", "deepgram_api_key", "elevenlabs_api_key"
]
SERVICE_KEYS: Final[tuple[ServiceKey, ...]] = (
    "twilio_account_sid",
    "twilio_auth_token",
    "deepgram_api_key",
    "elevenlabs_api_key",
)
"""All of them, by the names of the usual secrets; in capitals those are also the variables'."""

log = get_logger("lemon_gateway.voice.keys")


@dataclass(frozen=True, slots=True)
class Written:
    """What the configuration has for one key."""

    secret_name: str | None = None
    value: str | None = field(default=None, repr=False)

    def secrets(self, name: ServiceKey) -> tuple[str, ...]:
        """The names under which the key may be stored or set, as `credential` looks for them."""
        usual = (name, name.upper())
        return usual if self.secret_name is None else (self.secret_name, *usual)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """What the configuration has for one provider of models."""

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    secret_name: str | None = None

    def secrets(self, provider: str) -> tuple[str, ...]:
        """The names under which the provider's key may be stored, the row's own first."""
        usual = (f"llm_{provider}_api_key", model_variable(provider))
        return usual if self.secret_name is None else (self.secret_name, *usual)


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A key and the base URL it belongs to; None means the vendor's own."""

    value: str = field(repr=False)
    base_url: str | None


@dataclass(frozen=True, slots=True)
class VoiceKeys:
    """The keys of one gateway; `services` and `models` are what its configuration says."""

    secrets: Secrets
    environ: Mapping[str, str] = field(repr=False)
    services: Mapping[ServiceKey, Written] = field(default_factory=dict)
    models: Mapping[str, ModelRow] = field(default_factory=dict)

    async def service(self, name: ServiceKey) -> str | None:
        """The key of a service; None when it is nowhere, or cannot be read."""
        written = self.services.get(name, Written())
        try:
            found = await credential(
                self.secrets, named=written.secret_name, usual=name.upper(), plain=written.value
            )
        except SecretsError as exc:
            log.warning("voice.secret_unreadable", name=name, code=exc.code)
            return None
        return _text(found)

    async def model(self, provider: str) -> ModelKey | None:
        """The key for a provider's models; None when it is nowhere."""
        if found := _text(self.environ.get(model_variable(provider))):
            return ModelKey(found, _text(self.environ.get(f"{provider.upper()}_BASE_URL")))
        row = self.models.get(provider, ModelRow())
        if found := _text(row.api_key):
            return ModelKey(found, row.base_url)
        for secret in row.secrets(provider):
            if found := await self._stored(secret):
                return ModelKey(found, row.base_url)
        return None

    async def _stored(self, name: str) -> str | None:
        try:
            return _text(await self.secrets.get(name))
        except SecretsError as exc:
            if exc.code not in ("not_found", "expired"):
                log.warning("voice.secret_unreadable", name=name, code=exc.code)
            return None


def services_of(section: GatewayVoice) -> Mapping[ServiceKey, Written]:
    """What the section has for each of the services' keys."""
    return {
        name: Written(getattr(section, f"{name}_secret"), getattr(section, name))
        for name in SERVICE_KEYS
    }


def models_of(config: LemonConfig) -> Mapping[str, ModelRow]:
    """What the configuration has for the providers whose models can answer calls."""
    rows = {name: config.providers.get(name, Provider()) for name in ("openai", "anthropic")}
    return {
        name: ModelRow(row.base_url, row.api_key, row.api_key_secret) for name, row in rows.items()
    }


def model_variable(provider: str) -> str:
    """The variable that holds a provider's key."""
    return f"{provider.upper()}_API_KEY"


def _text(value: str | None) -> str | None:
    return value.strip() or None if value else None
