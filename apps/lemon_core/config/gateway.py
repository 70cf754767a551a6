"""The `gateway` section."""

from typing import Annotated, Literal

from pydantic import Field

from lemon_core.config.fields import (
    NOTHING,
    BindAddress,
    NotNegative,
    Opaque,
    Port,
    Positive,
    Section,
    Text,
)
from lemon_core.config.rpc import GatewayRpc


class GatewayQueue(Section):
    """Defaults for requests of the gateway's own ingress."""

    mode: (
        Literal["collect", "followup", "steer", "steer_backlog", "redirect", "interrupt"] | None
    ) = None
    cap: Positive | None = None
    drop: Literal["oldest", "newest", "reject"] | None = None


class GatewaySection(Section):
    """Slots, the engine lock, health, and the gateway's surfaces."""

    max_concurrent_runs: Positive = 2
    default_cwd: str | None = None
    auto_resume: bool = False
    require_engine_lock: bool = True
    engine_lock_timeout_ms: NotNegative = 60_000
    engine_lock_max_hold_ms: Positive = 300_000
    # None is derived from the hold time.
    engine_lock_reap_interval_ms: Positive | None = None
    enable_webhook: bool = False
    enable_telegram: bool = False
    enable_discord: bool = False
    enable_xmtp: bool = False
    gateway_ingress_enabled: bool = False
    health_enabled: bool = True
    # 0 lets the system choose.
    health_port: Port = 4042
    health_ip: BindAddress = "127.0.0.1"
    workspace_dir: Text | None = None
    rpc: GatewayRpc = GatewayRpc.model_construct()
    queue: GatewayQueue = GatewayQueue.model_construct()
    projects: Opaque = NOTHING
    bindings: Annotated[tuple[Opaque, ...], Field(strict=False)] = ()
    webhook: Opaque = NOTHING
    sms: Opaque = NOTHING
    voice: Opaque = NOTHING
    telegram: Opaque = NOTHING
    discord: Opaque = NOTHING
    xmtp: Opaque = NOTHING
    email: Opaque = NOTHING
