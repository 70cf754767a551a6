"""The `router` section."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from lemon_core.config.fields import (
    BindAddress,
    NotNegative,
    Port,
    Positive,
    Section,
    Text,
)
from lemon_core.config.listen import ListenText
from lemon_core.config.rpc import RouterRpc


def _limit(value: object) -> object:
    if value == "infinity":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError('must be a whole number from 1, or "infinity"')
    return value


def _off(value: object) -> object:
    """`false` is another way to write 0."""
    return 0 if value is False else value


class RouterStream(Section):
    """How the text of an answer is gathered before it goes out."""

    min_chars: Positive = 200
    idle_ms: NotNegative = 800
    max_latency_ms: Positive = 3_000


class ToolStatus(Section):
    """How changes of a tool's status are gathered."""

    idle_ms: NotNegative = 400
    max_latency_ms: Positive = 1_200


class RoutingFeedback(Section):
    """What is remembered of how well models did."""

    # None is a file in the store directory.
    path: Text | None = None
    min_sample_size: Positive = 5
    retention_ms: Positive = 2_592_000_000
    subscribe: bool = True


class RouterSection(Section):
    """How the router reaches gateways, what it waits for, and its surfaces."""

    engine_runtime: Literal["in_process", "grpc"] = "in_process"
    engine_targets: Annotated[tuple[ListenText, ...], Field(strict=False)] = ()
    # The one-element form of `engine_targets`.
    engine_target: ListenText | None = None
    engine_token_secret: Text | None = None
    engine_tls_ca: Text | None = None
    engine_tls_cert: Text | None = None
    engine_tls_key: Text | None = None
    # None is no limit, written "infinity".
    run_process_limit: Annotated[int | None, BeforeValidator(_limit)] = 500
    # 0 and false turn it off.
    run_idle_watchdog_timeout_ms: Annotated[NotNegative, BeforeValidator(_off)] = 7_200_000
    run_idle_watchdog_confirm_timeout_ms: Positive = 300_000
    followup_debounce_ms: NotNegative = 500
    steer_ack_timeout_ms: Positive = 5_000
    coordinator_idle_ms: Positive = 300_000
    admission_retention_ms: Positive = 172_800_000
    agent_profiles_cwd: Text | None = None
    health_enabled: bool = True
    health_port: Port = 4043
    health_ip: BindAddress = "127.0.0.1"
    rpc: RouterRpc = RouterRpc.model_construct()
    stream: RouterStream = RouterStream.model_construct()
    tool_status: ToolStatus = ToolStatus.model_construct()
    routing_feedback: RoutingFeedback = RoutingFeedback.model_construct()

    @property
    def targets(self) -> tuple[str, ...]:
        """The gateways to use; empty means the one of this machine."""
        return (self.engine_target,) if self.engine_target else self.engine_targets

    def problems(self) -> list[tuple[str, str]]:
        """What does not fit together, as (key, message)."""
        if self.engine_target and self.engine_targets:
            return [("engine_target", "set either engine_target or engine_targets")]
        return []
