"""What `lemon doctor` says of phone calls: reachable, signed, safe, and with all their keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from lemon_core.config.ingress import GatewayVoice
from lemon_core.doctor.context import DoctorContext
from lemon_core.doctor.report import Finding
from lemon_core.store import StoreError
from lemon_gateway.doctor import WayIn, look_at
from lemon_gateway.voice.audio import ULAW, is_usable_format
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.keys import (
    SERVICE_KEYS,
    ServiceKey,
    model_variable,
    models_of,
    services_of,
)
from lemon_gateway.voice.providers import provider_of
from lemon_gateway.voice.security import SECTION, VoiceSecurity

Remark = tuple[str, str]

_NEEDED: Final[Mapping[ServiceKey, str]] = {
    "deepgram_api_key": "nothing that a caller says is understood",
    "elevenlabs_api_key": "nothing is spoken",
}


async def look(context: DoctorContext) -> Finding:
    """The worst that can be said of `POST /webhooks/twilio/voice` and what stands behind it."""
    section = context.config.gateway.voice
    there = await _present(context, section) if section.enabled else frozenset()
    token = "there is one" if "twilio_auth_token" in there else ""
    security = VoiceSecurity(token, section.public_url, section.validate_webhook)
    return await look_at(
        context,
        WayIn(
            switch="gateway.voice.enabled",
            is_on=section.enabled,
            section=SECTION,
            bind=section.bind,
            port=section.websocket_port,
            unprotected=security.unprotected,
            faults=tuple(_faults(security, section, there)),
            risks=tuple(_risks(section, there)),
            port_key="websocket_port",
        ),
    )


def _faults(
    security: VoiceSecurity, section: GatewayVoice, there: Collection[str]
) -> Iterator[Remark]:
    """What keeps a call from being one."""
    if security.validate and not security.auth_token:
        yield "there is no Twilio token: every call is answered with 401", "lemon voice secrets"
    for name, without in _NEEDED.items():
        if name not in there:
            yield f"there is no {name}: {without}", "lemon voice secrets"
    if not is_usable_format(section.elevenlabs_output_format):
        yield (
            f"elevenlabs_output_format {section.elevenlabs_output_format!r} cannot be put on a "
            "phone line: nothing is spoken",
            f'set elevenlabs_output_format = "{ULAW}" in [{SECTION}]',
        )
    try:
        provider = provider_of(section.llm_model)
    except ProviderFailed as exc:
        yield f"callers get no answer: {exc}", f"set llm_model in [{SECTION}]"
        return
    if provider not in there:
        yield (
            f"there is no key for {section.llm_model}: callers hear an apology",
            f"lemon secrets set {model_variable(provider)}",
        )


def _risks(section: GatewayVoice, there: Collection[str]) -> Iterator[Remark]:
    if not section.validate_webhook:
        yield (
            "signatures are not checked: only this machine may call, and no proxy",
            f"set validate_webhook = true in [{SECTION}]",
        )
    if urlsplit(section.public_url or "").scheme == "http":
        yield (
            "public_url is http: calls travel in clear text, and Twilio streams to wss only",
            f"set public_url in [{SECTION}] to an https address",
        )
    if "twilio_account_sid" not in there:
        yield "there is no twilio_account_sid: no call is recorded", "lemon voice secrets"


async def _present(context: DoctorContext, section: GatewayVoice) -> frozenset[str]:
    """The services and providers whose key calls would find; no value is read."""
    services, models = services_of(section), models_of(context.config)
    stored: dict[str, Sequence[str]] = {
        **{name: services[name].secrets(name) for name in SERVICE_KEYS},
        **{provider: row.secrets(provider) for provider, row in models.items()},
    }
    variables: dict[str, Sequence[str]] = {
        **{name: (services[name].secret_name or "", name.upper()) for name in SERVICE_KEYS},
        **{provider: (model_variable(provider),) for provider in models},
    }
    plain: dict[str, str | None] = {
        **{name: services[name].value for name in SERVICE_KEYS},
        **{provider: row.api_key for provider, row in models.items()},
    }
    there = {
        name
        for name in stored
        if plain[name] or any(context.environ.get(key, "").strip() for key in variables[name])
    }
    if not context.has_store:
        return frozenset(there)
    try:
        async with context.open_store() as store:
            vault = context.make_secrets(store)
            for name in stored.keys() - there:
                if any([await vault.exists(secret) for secret in stored[name]]):
                    there.add(name)
    except StoreError:
        return frozenset(there)  # the check of the store tells
    return frozenset(there)
