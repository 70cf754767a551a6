"""One sender of webhooks as it is configured: its own keys over those of the section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from lemon_core import session_key as session_keys
from lemon_core.config.gateway import GatewaySection
from lemon_core.config.ingress import GatewayWebhook, Mode, WebhookIntegration
from lemon_core.paths import PathSettings
from lemon_core.runs import DEFAULT_AGENT, QueueMode
from lemon_core.tool_policy import ToolPolicy

T = TypeVar("T")

MIN_LEASE_MS: Final = 30_000
LEASE_MARGIN_MS: Final = 30_000
MIN_TOKEN_CHARS: Final = 16
"""A shorter token protects nothing that strangers can reach."""

# A message from outside that is put into a run at work would have that run's rights.
# docs/decisions/0017-what-a-webhook-may-do.md
_WITHOUT_STEERING: Final[Mapping[QueueMode, QueueMode]] = MappingProxyType(
    {"steer": "followup", "steer_backlog": "collect", "redirect": "followup"}
)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Where answers go, and how often that is tried."""

    url: str | None
    may_be_given: bool
    may_be_private: bool
    wait_timeout_ms: int
    max_attempts: int
    backoff_ms: int
    backoff_max_ms: int


@dataclass(frozen=True, slots=True)
class Integration:
    """A sender; `token` is "" when none is configured, and then nothing is taken from it."""

    id: str
    token: str
    session_key: str
    agent_id: str
    queue_mode: QueueMode
    cwd: str | None
    policy: ToolPolicy
    mode: Mode
    timeout_ms: int
    callbacks: Callbacks
    allow_query_token: bool
    allow_payload_token: bool
    allow_payload_key: bool

    @property
    def scope(self) -> str:
        """Where its idempotency keys are kept."""
        return f"webhook:{self.id}"

    @property
    def lease_ms(self) -> int:
        """For how long a request may be at it before another one may take its key over."""
        return max(self.timeout_ms, MIN_LEASE_MS) + LEASE_MARGIN_MS

    def flags(self) -> dict[str, object]:
        """What is in force, as a run is told; no token and no address."""
        return {
            "mode": self.mode,
            "queue_mode": self.queue_mode,
            "timeout_ms": self.timeout_ms,
            "callback_wait_timeout_ms": self.callbacks.wait_timeout_ms,
            "callback_max_attempts": self.callbacks.max_attempts,
            "allow_callback_override": self.callbacks.may_be_given,
            "allow_private_callback_hosts": self.callbacks.may_be_private,
            "allow_query_token": self.allow_query_token,
            "allow_payload_token": self.allow_payload_token,
            "allow_payload_idempotency_key": self.allow_payload_key,
        }


def integrations_of(section: GatewaySection, paths: PathSettings) -> dict[str, Integration]:
    """Every sender that is configured, by id."""
    rows = section.webhook.integrations
    return {name: _integration(name, row, section, paths) for name, row in rows.items()}


def unprotected(section: GatewaySection) -> str | None:
    """What to set before strangers may reach the webhook; None when they may."""
    rows = section.webhook.integrations
    if not rows:
        return "add [gateway.webhook.integrations.<id>] with a token"
    for name, row in rows.items():
        if len(row.token or "") < MIN_TOKEN_CHARS:
            key = f"token in [gateway.webhook.integrations.{name}]"
            return f"set {key} to at least {MIN_TOKEN_CHARS} characters"
    return None


def _integration(
    name: str, row: WebhookIntegration, section: GatewaySection, paths: PathSettings
) -> Integration:
    webhook = section.webhook
    agent_id = row.agent_id or session_keys.agent_id(row.session_key) or DEFAULT_AGENT
    asked = row.queue_mode or section.queue.mode or "collect"
    return Integration(
        id=name,
        token=row.token or "",
        session_key=row.session_key or session_keys.main(agent_id),
        agent_id=agent_id,
        queue_mode=_WITHOUT_STEERING.get(asked, asked),
        cwd=str(paths.expand(row.cwd)) if row.cwd else None,
        policy=row.policy,
        mode=row.mode or webhook.mode,
        timeout_ms=row.timeout_ms or webhook.timeout_ms,
        callbacks=_callbacks(row, webhook),
        allow_query_token=_first(row.allow_query_token, webhook.allow_query_token),
        allow_payload_token=_first(row.allow_payload_token, webhook.allow_payload_token),
        allow_payload_key=_first(
            row.allow_payload_idempotency_key, webhook.allow_payload_idempotency_key
        ),
    )


def _callbacks(row: WebhookIntegration, webhook: GatewayWebhook) -> Callbacks:
    return Callbacks(
        url=row.callback_url or webhook.callback_url,
        may_be_given=_first(row.allow_callback_override, webhook.allow_callback_override),
        may_be_private=_first(
            row.allow_private_callback_hosts, webhook.allow_private_callback_hosts
        ),
        wait_timeout_ms=row.callback_wait_timeout_ms or webhook.callback_wait_timeout_ms,
        max_attempts=row.callback_max_attempts or webhook.callback_max_attempts,
        backoff_ms=_first(row.callback_backoff_ms, webhook.callback_backoff_ms),
        backoff_max_ms=_first(row.callback_backoff_max_ms, webhook.callback_backoff_max_ms),
    )


def _first(own: T | None, common: T) -> T:
    return common if own is None else own
