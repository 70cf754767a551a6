"""The whole configuration as typed, frozen sections.

One model serves every reader; what an app contributes joins it as a subclass (`compose`). Importing
builds no validator: that happens when a configuration is first validated.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, field_validator

from lemon_core.config.fields import (
    PROJECT_SAFE,
    HttpUrl,
    NotNegative,
    Opaque,
    Positive,
    QueueMode,
    Section,
    Text,
    Texts,
)
from lemon_core.config.gateway import GatewaySection
from lemon_core.config.provider_routing import ProviderRouting
from lemon_core.config.router import RouterSection
from lemon_core.config.tools import Tools
from lemon_core.tool_policy import ToolPolicy

M = TypeVar("M", bound=BaseModel)

ThinkingLevel = Literal["off", "minimal", "low", "medium", "high", "xhigh"]
FeatureState = Literal["off", "opt-in", "default-on", "on"]

DEFAULT_PROFILE = "default"


class Defaults(Section):
    """Which model answers when nobody says otherwise."""

    provider: Text | None = None
    model: Annotated[Text | None, PROJECT_SAFE] = None
    thinking_level: Annotated[ThinkingLevel, PROJECT_SAFE] = "medium"


class Compaction(Section):
    """When a conversation is summarised to fit its model's window."""

    enabled: bool = True
    reserve_tokens: NotNegative = 16_384
    keep_recent_tokens: NotNegative = 20_000
    context_window_tokens: Positive | None = None
    trigger_ratio: Annotated[float, Field(gt=0, le=1)] = 0.9


class Retry(Section):
    """How often a failed model call is tried again."""

    enabled: bool = True
    max_retries: NotNegative = 3
    base_delay_ms: Positive = 1_000


class Shell(Section):
    """The shell of the `bash` tool."""

    path: Text | None = None
    command_prefix: Text | None = None
    timeout_ms: Annotated[int, Field(ge=1_000, le=600_000)] = 60_000
    # Commands inherit no keys; these variables they do. `*` stands for any part of a name.
    pass_env: Texts = ()


class Extensions(Section):
    """Whether extensions are loaded, and whether those in the usual folders are too."""

    enabled: bool = True
    auto_load_default_paths: bool = False


class BudgetDefaults(Section):
    """Limits of a run that names none."""

    max_children: Positive = 5


class Lanes(Section):
    """How many sessions of one kind work at the same time."""

    main: Positive = 4
    subagent: Positive = 8


class AsyncFollowups(Section):
    """How the result of background work joins the conversation."""

    default_queue_mode: QueueMode = "steer_backlog"


class RuntimeSection(Section):
    """How agents run."""

    compaction: Annotated[Compaction, PROJECT_SAFE] = Compaction.model_construct()
    retry: Retry = Retry.model_construct()
    shell: Shell = Shell.model_construct()
    theme: Annotated[Text, PROJECT_SAFE] = "lemon"
    extension_paths: Texts = ()
    extensions: Extensions = Extensions.model_construct()
    budget_defaults: BudgetDefaults = BudgetDefaults.model_construct()
    provider_routing: ProviderRouting = ProviderRouting.model_construct()
    channel: Text = "stable"
    pinned_version: Text | None = None
    auto_update: bool = False
    tools: Tools = Tools.model_construct()
    lanes: Lanes = Lanes.model_construct()
    async_followups: AsyncFollowups = AsyncFollowups.model_construct()


class Profile(Section):
    """One agent: its name, voice, model and policy."""

    name: Text | None = None
    description: str | None = None
    avatar: str | None = None
    model: Text | None = None
    system_prompt: str | None = None
    # A project's policy is folded in with `intersect`, so it can only take away.
    tool_policy: Annotated[ToolPolicy | None, PROJECT_SAFE] = None
    rate_limit: Opaque | None = None
    status: Text = "active"


class Provider(Section):
    """Where a model provider is and which credential opens it.

    `api_key` belongs to the base URL of the same row: a project file can set neither.
    """

    api: Text | None = None
    models: Texts = ()
    api_key: Annotated[Text | None, Field(repr=False)] = None
    base_url: HttpUrl | None = None
    auth_source: Literal["oauth", "api_key"] | None = None
    api_key_secret: Text | None = None
    oauth_secret: Text | None = None
    project: Text | None = None
    project_id: Text | None = None
    project_secret: Text | None = None
    location: Text | None = None
    location_secret: Text | None = None
    service_account_json: Annotated[Text | None, Field(repr=False)] = None
    service_account_json_secret: Text | None = None
    access_key_id_secret: Text | None = None
    secret_access_key_secret: Text | None = None
    session_token_secret: Text | None = None
    resource_name: Text | None = None
    api_version: Text | None = None
    deployment_name_map: Mapping[str, str] = {}
    region: Text | None = None


class StoreSection(Section):
    """Which backend keeps state, and where."""

    backend: Literal["sqlite", "memory", "postgres"] = "sqlite"
    path: Text = "~/.lemon/store"
    url_secret: Text | None = None


class Logging(Section):
    """How much is logged, and into which file beside stderr."""

    level: Literal["debug", "info", "warning", "error"] | None = None
    file: Text | None = None
    max_no_bytes: Positive | None = None
    max_no_files: Positive | None = None
    compress_on_rotate: bool | None = None
    filesync_repeat_interval: Positive | None = None


class Tui(Section):
    """The terminal client."""

    theme: Annotated[
        Literal["default", "dark", "light", "high_contrast", "lemon"], PROJECT_SAFE
    ] = "lemon"
    debug: bool = False


class Features(Section):
    """Switches of features that can be turned off."""

    session_search: FeatureState = "default-on"
    routing_feedback: FeatureState = "default-on"
    skill_synthesis_drafts: FeatureState = "default-on"


class Introspection(Section):
    """Whether runs are recorded for later questions."""

    enabled: bool = True


def _only_default() -> dict[str, Profile]:
    return {DEFAULT_PROFILE: Profile.model_construct()}


class LemonConfig(Section):
    """Everything that can be configured; a plain `LemonConfig()` holds the defaults."""

    defaults: Defaults = Defaults.model_construct()
    runtime: RuntimeSection = RuntimeSection.model_construct()
    profiles: Mapping[str, Profile] = Field(default_factory=_only_default)
    providers: Mapping[str, Provider] = {}
    gateway: GatewaySection = GatewaySection.model_construct()
    router: RouterSection = RouterSection.model_construct()
    store: StoreSection = StoreSection.model_construct()
    logging: Logging = Logging.model_construct()
    tui: Tui = Tui.model_construct()
    features: Features = Features.model_construct()
    introspection: Introspection = Introspection.model_construct()

    @field_validator("profiles", mode="after")
    @classmethod
    def _default_is_there(cls, profiles: Mapping[str, Profile]) -> Mapping[str, Profile]:
        return profiles if DEFAULT_PROFILE in profiles else {**_only_default(), **profiles}

    def section(self, path: str, model: type[M]) -> M:
        """The contributed section at the dotted `path`; its defaults when nobody set any of it."""
        found: object = self
        for name in path.split("."):
            found = getattr(found, name, None)
        return found if isinstance(found, model) else model()
