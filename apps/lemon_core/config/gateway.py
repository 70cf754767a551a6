"""The `gateway` section."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from lemon_core.config.fields import (
    BindAddress,
    NotNegative,
    Port,
    Positive,
    QueueMode,
    Section,
    Text,
)
from lemon_core.config.ingress import GatewaySms, GatewayVoice, GatewayWebhook
from lemon_core.config.rpc import GatewayRpc


class GatewayQueue(Section):
    """Defaults for requests of the gateway's own ingress."""

    mode: QueueMode | None = None
    cap: Positive | None = None
    drop: Literal["oldest", "newest", "reject"] | None = None


class GatewayProject(Section):
    """A directory that chats may be bound to; `~` is the home directory."""

    root: Text


class GatewayBinding(Section):
    """What belongs to one chat, or to one topic of it; an unknown queue mode reads as none."""

    transport: Text
    chat_id: int | Text
    topic_id: int | Text | None = None
    project: Text | None = None
    agent_id: str | None = None
    queue_mode: str | None = None


class GatewaySection(Section):
    """Slots, the engine lock, health, and the gateway's surfaces.

    A channel adds `enable_<id>` and a section of its own (`lemon_core.config.channels`).
    """

    max_concurrent_runs: Positive = 2
    default_cwd: str | None = None
    auto_resume: bool = False
    require_engine_lock: bool = True
    engine_lock_timeout_ms: NotNegative = 60_000
    engine_lock_max_hold_ms: Positive = 300_000
    # None is derived from the hold time.
    engine_lock_reap_interval_ms: Positive | None = None
    enable_webhook: bool = False
    gateway_ingress_enabled: bool = False
    health_enabled: bool = True
    # 0 lets the system choose.
    health_port: Port = 4042
    health_ip: BindAddress = "127.0.0.1"
    workspace_dir: Text | None = None
    rpc: GatewayRpc = GatewayRpc.model_construct()
    queue: GatewayQueue = GatewayQueue.model_construct()
    webhook: GatewayWebhook = GatewayWebhook.model_construct()
    sms: GatewaySms = GatewaySms.model_construct()
    voice: GatewayVoice = GatewayVoice.model_construct()
    projects: Mapping[str, GatewayProject] = {}
    bindings: Annotated[tuple[GatewayBinding, ...], Field(strict=False)] = ()
