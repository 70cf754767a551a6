"""What `lemon doctor` says of the gateway's own ways in: reachable, signed, safe.

It needs no running Lemon: what is configured is judged, and the port is asked if a server runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import anyio

from lemon_core import session_key as session_keys
from lemon_core.config.gateway import GatewaySection
from lemon_core.doctor.context import DoctorCheck, DoctorContext
from lemon_core.doctor.report import Finding, failed, passed, skipped, warned
from lemon_core.runs import DEFAULT_AGENT
from lemon_core.single_errors import single_errors
from lemon_core.state_lock import StateDirUnusable, read_holder
from lemon_core.tool_classes import CODE_RUNNERS
from lemon_gateway.ingress import is_loopback
from lemon_gateway.webhook.settings import MIN_TOKEN_CHARS, unprotected

ASK_TIMEOUT_S: Final = 2.0
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_REQUEST: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
# What every way in answers to a path that it does not have.
_ANSWER: Final = b'{"error":"not found"}'

Answering = Literal["ours", "another", "nobody"]


@dataclass(frozen=True, slots=True)
class WayIn:
    """One way in as it is configured.

    `unprotected` says what to set before it may be public, `faults` is what keeps messages out, and
    `risks` what to think about; each is a finding's message and what to do about it.
    """

    switch: str
    is_on: bool
    section: str
    bind: str
    port: int
    unprotected: str | None
    faults: Sequence[tuple[str, str]] = ()
    risks: Sequence[tuple[str, str]] = ()
    bind_key: str = "bind"
    port_key: str = "port"


async def look_at(context: DoctorContext, way: WayIn) -> Finding:
    """The worst that can be said of it; a port of 0 is not asked."""
    if not way.is_on:
        return skipped(f"{way.switch} is off")
    if not context.config.gateway.gateway_ingress_enabled:
        return warned(
            f"{way.switch} is on and does nothing", "set gateway.gateway_ingress_enabled = true"
        )
    if way.unprotected is not None and not is_loopback(way.bind):
        return failed(
            f"[{way.section}] {way.bind_key} = {way.bind!r} is open to everybody: the server does "
            "not start",
            f"{way.unprotected}, or set {way.bind_key} to 127.0.0.1",
        )
    for message, remedy in way.faults:
        return failed(message, remedy)
    reached = await _reached(context, way)
    if reached.status in ("fail", "warn"):
        return reached
    for message, remedy in way.risks:
        return warned(message, remedy)
    return reached


async def _reached(context: DoctorContext, way: WayIn) -> Finding:
    where = f"{way.bind}:{way.port}"
    try:
        holder = read_holder(context.paths.runtime_lock)
    except StateDirUnusable as exc:
        return failed(str(exc), f"check the permissions of {context.paths.run_dir}")
    if way.port == 0:
        return passed("the system chooses a port at each start")
    answering = await _answering(_WILDCARDS.get(way.bind, way.bind), way.port)
    if answering == "another":
        return failed(
            f"{where} is answered by another program",
            f"stop it, or set {way.port_key} in [{way.section}] to a free port",
        )
    if answering == "ours":
        return passed(f"{where} answers")
    if holder is None:
        return passed(f"configured for {where}; Lemon is not running")
    return warned(
        f"Lemon runs (process {holder.pid}) and nothing answers on {where}",
        "restart it: this configuration is read at the start",
    )


async def _answering(host: str, port: int) -> Answering:
    found = b""
    with single_errors(), anyio.move_on_after(ASK_TIMEOUT_S):
        try:
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(_REQUEST)
                while len(found) < 65_536:
                    found += await stream.receive()
        except anyio.EndOfStream:
            pass
        except (OSError, anyio.BrokenResourceError):
            return "another" if found else "nobody"
    return "ours" if _ANSWER in found else "another"


# --- the webhook ---


async def webhook(context: DoctorContext) -> Finding:
    """`POST /webhooks/<integration>`."""
    section = context.config.gateway
    return await look_at(
        context,
        WayIn(
            switch="gateway.enable_webhook",
            is_on=section.enable_webhook,
            section="gateway.webhook",
            bind=section.webhook.bind,
            port=section.webhook.port,
            unprotected=unprotected(section),
            faults=_webhook_faults(section),
            risks=_webhook_risks(section),
        ),
    )


def _webhook_faults(section: GatewaySection) -> list[tuple[str, str]]:
    rows = section.webhook.integrations
    if not rows:
        return [
            (
                "the webhook has no integration: everything is answered with 404",
                "add [gateway.webhook.integrations.<id>] with a token",
            )
        ]
    return [
        (
            f"the webhook integration {name!r} has no token: all it sends is answered with 401",
            f"set token in [gateway.webhook.integrations.{name}]",
        )
        for name, row in rows.items()
        if not row.token
    ]


def _webhook_risks(section: GatewaySection) -> list[tuple[str, str]]:
    webhook, found = section.webhook, []
    for name, row in webhook.integrations.items():
        at = f"[gateway.webhook.integrations.{name}]"
        if row.token and len(row.token) < MIN_TOKEN_CHARS:
            found.append((f"the token of {name!r} is short", f"set a longer token in {at}"))
        if any(map(row.policy.allowed, ("bash", *CODE_RUNNERS))):
            found.append(
                (
                    f"what {name!r} sends may run commands: its policy allows the shell, and "
                    "whoever writes a message decides what the model reads",
                    f'set policy in {at} to less, for example "read_only"',
                )
            )
        given = row.allow_callback_override, webhook.allow_callback_override
        private = row.allow_private_callback_hosts, webhook.allow_private_callback_hosts
        if _in_force(*given) and _in_force(*private):
            found.append(
                (
                    f"{name!r} may have this machine call any address of its network",
                    f"set allow_private_callback_hosts = false in {at}",
                )
            )
        if _in_force(row.allow_query_token, webhook.allow_query_token):
            found.append(
                (
                    f"{name!r} may send its token in the URL, which proxies and senders log",
                    f"send it in a header, and set allow_query_token = false in {at}",
                )
            )
        answered = row.callback_url or webhook.callback_url or _in_force(*given)
        if (answered or (row.mode or webhook.mode) == "sync") and _is_owners(row.session_key):
            found.append(
                (
                    f"answers to {name!r} come out of your own conversation: a message that asks "
                    "for it may be told what was said there",
                    f'set session_key = "agent:default:main:sub:{name}" in {at}',
                )
            )
    return found


def _is_owners(key: str | None) -> bool:
    """Whether a webhook's messages are put into the main conversation of an agent."""
    return key is None or key == session_keys.main(session_keys.agent_id(key) or DEFAULT_AGENT)


def _in_force(own: bool | None, common: bool) -> bool:
    return common if own is None else own


# --- the others ---


async def sms(context: DoctorContext) -> Finding:
    """`POST /webhooks/twilio/sms`."""
    from lemon_gateway.sms.doctor import look  # which stands on this module

    return await look(context)


async def voice(context: DoctorContext) -> Finding:
    """`POST /webhooks/twilio/voice`."""
    from lemon_gateway.voice.doctor import look  # as above

    return await look(context)


CHECKS: Final[tuple[DoctorCheck, ...]] = (
    DoctorCheck("gateway.webhook", webhook),
    DoctorCheck("gateway.sms", sms),
    DoctorCheck("gateway.voice", voice),
)
