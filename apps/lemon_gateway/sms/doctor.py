"""What `lemon doctor` says of the SMS inbox: reachable, signed, safe."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from lemon_core.config.ingress import GatewaySms
from lemon_core.doctor.context import DoctorContext
from lemon_core.doctor.report import Finding
from lemon_core.store import StoreError
from lemon_gateway.doctor import WayIn, look_at
from lemon_gateway.sms.security import SECTION, TOKEN_NAME, SmsSecurity

Remark = tuple[str, str]


async def look(context: DoctorContext) -> Finding:
    """The worst that can be said of `POST /webhooks/twilio/sms`."""
    section = context.config.gateway.sms
    has_token = section.webhook_enabled and await _has_token(context, section)
    security = SmsSecurity(
        "there is one" if has_token else "", section.webhook_url, section.validate_webhook
    )
    return await look_at(
        context,
        WayIn(
            switch="gateway.sms.webhook_enabled",
            is_on=section.webhook_enabled,
            section=SECTION,
            bind=section.webhook_bind,
            port=section.webhook_port,
            unprotected=security.unprotected,
            faults=_faults(security, section.auth_token_secret or TOKEN_NAME),
            risks=_risks(section),
            bind_key="webhook_bind",
            port_key="webhook_port",
        ),
    )


def _faults(security: SmsSecurity, secret: str) -> Sequence[Remark]:
    if security.validate and not security.auth_token:
        return (
            (
                "there is no Twilio token: every message is answered with 401",
                f"lemon secrets set {secret}, and restart the server",
            ),
        )
    return ()


def _risks(section: GatewaySms) -> Sequence[Remark]:
    found: list[Remark] = []
    if not section.validate_webhook:
        found.append(
            (
                "signatures are not checked: only this machine may deliver, and no proxy",
                f"set validate_webhook = true in [{SECTION}]",
            )
        )
    url = urlsplit(section.webhook_url or "")
    if url.scheme == "http":
        found.append(
            (
                "webhook_url is http: codes travel in clear text",
                f"have Twilio call an https address, and set webhook_url in [{SECTION}] to it",
            )
        )
    if section.webhook_url is not None and url.path in ("", "/"):
        found.append(
            (
                "webhook_url has no path: signatures are made for the whole address",
                f"set webhook_url in [{SECTION}] to exactly what Twilio was given",
            )
        )
    if section.inbox_number is None:
        found.append(
            (
                "no inbox_number is set: runs cannot tell a site where to send its code",
                f"set inbox_number in [{SECTION}], or the variable TWILIO_INBOX_NUMBER",
            )
        )
    return found


async def _has_token(context: DoctorContext, section: GatewaySms) -> bool:
    """Whether `credential` would find one; a secret that cannot be read counts as one."""
    named = section.auth_token_secret
    variables = [context.environ.get(name, "") for name in (named, TOKEN_NAME) if name]
    if section.auth_token or any(text.strip() for text in variables):
        return True
    if not context.has_store:
        return False
    try:
        async with context.open_store() as store:
            secrets = context.make_secrets(store)
            names = (named, TOKEN_NAME) if named else (TOKEN_NAME,)
            return any([await secrets.exists(name) for name in names])
    except StoreError:
        return False  # the check of the store tells
