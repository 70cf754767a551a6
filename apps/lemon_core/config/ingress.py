"""The sections of the gateway's own ways in: webhook, text messages and phone calls.

They are served only with `gateway.gateway_ingress_enabled`, and on this machine alone unless a
section names another address.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from lemon_core import session_key
from lemon_core.config.fields import (
    BindAddress,
    HttpUrl,
    NotNegative,
    Port,
    Positive,
    QueueMode,
    Section,
    Text,
)
from lemon_core.config.rpc import Policy
from lemon_core.tool_policy import ToolPolicy

LOOPBACK = "127.0.0.1"

Mode = Literal["sync", "async"]
# A key that says nothing means this machine alone.
Bind = Annotated[BindAddress, BeforeValidator(lambda value: LOOPBACK if value is None else value)]
Private = Annotated[Text | None, Field(repr=False)]


def _session_key(text: str) -> str:
    if not session_key.is_valid(text):
        raise ValueError("must be a session key, for example agent:default:main")
    return text


def _no_tools() -> ToolPolicy:
    return ToolPolicy.parse({"allow": []})


class WebhookIntegration(Section):
    """One sender of webhooks; what it leaves out is as `[gateway.webhook]` says."""

    token: Private = None
    session_key: Annotated[str, AfterValidator(_session_key)] | None = None
    agent_id: Text | None = None
    queue_mode: QueueMode | None = None
    cwd: Text | None = None
    # What its messages may cause at most. Whoever can write one decides what the model reads, so
    # that without a word from the owner its runs answer and do nothing else.
    policy: Policy = Field(default_factory=_no_tools)
    mode: Mode | None = None
    timeout_ms: Positive | None = None
    callback_wait_timeout_ms: Positive | None = None
    callback_url: HttpUrl | None = None
    allow_callback_override: bool | None = None
    allow_private_callback_hosts: bool | None = None
    allow_query_token: bool | None = None
    allow_payload_token: bool | None = None
    allow_payload_idempotency_key: bool | None = None
    callback_max_attempts: Positive | None = None
    callback_backoff_ms: NotNegative | None = None
    callback_backoff_max_ms: NotNegative | None = None


class GatewayWebhook(Section):
    """`POST /webhooks/<integration>`: where it listens and how it answers."""

    bind: Bind = LOOPBACK
    # 0 lets the system choose.
    port: Port = 4046
    mode: Mode = "async"
    timeout_ms: Positive = 30_000
    callback_wait_timeout_ms: Positive = 600_000
    callback_url: HttpUrl | None = None
    allow_callback_override: bool = False
    allow_private_callback_hosts: bool = False
    allow_query_token: bool = False
    allow_payload_token: bool = False
    allow_payload_idempotency_key: bool = False
    callback_max_attempts: Positive = 3
    callback_backoff_ms: NotNegative = 500
    callback_backoff_max_ms: NotNegative = 5_000
    integrations: Mapping[str, WebhookIntegration] = {}


class GatewaySms(Section):
    """Text messages that Twilio hands over, and the inbox they go to."""

    webhook_enabled: bool = False
    webhook_port: Port = 4045
    webhook_bind: Bind = LOOPBACK
    inbox_number: Text | None = None
    inbox_ttl_ms: Positive = 86_400_000
    validate_webhook: bool = True
    auth_token: Private = None
    auth_token_secret: Text | None = None
    # The address that Twilio was given; None puts it together from each request.
    webhook_url: HttpUrl | None = None


class GatewayVoice(Section):
    """Phone calls over Twilio: hearing, speaking, and how long a call may take."""

    enabled: bool = False
    websocket_port: Port = 4047
    bind: Bind = LOOPBACK
    public_url: HttpUrl | None = None
    validate_webhook: bool = True
    twilio_account_sid: Text | None = None
    twilio_account_sid_secret: Text | None = None
    twilio_auth_token: Private = None
    twilio_auth_token_secret: Text | None = None
    twilio_phone_number: Text | None = None
    deepgram_api_key: Private = None
    deepgram_api_key_secret: Text | None = None
    elevenlabs_api_key: Private = None
    elevenlabs_api_key_secret: Text | None = None
    elevenlabs_voice_id: Text = "21m00Tcm4TlvDq8ikWAM"
    elevenlabs_output_format: Text = "ulaw_8000"
    llm_model: Text = "gpt-4o-mini"
    system_prompt: Text | None = None
    welcome_message: Text | None = None
    max_call_duration_seconds: Positive = 600
    silence_timeout_ms: Positive = 5_000
    recordings_dir: Text = "~/.lemon/recordings"
