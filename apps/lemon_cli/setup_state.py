"""What is set up and what is not, found out each time and never stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lemon_agent.runtime import ProviderTable, normal_name
from lemon_agent.runtime.names import split_spec
from lemon_ai.local_server import LOCAL_PROVIDER
from lemon_cli.provider_view import ProviderView, at_config, provider_view
from lemon_core.cli.config_view import inspected
from lemon_core.commands import CommandContext
from lemon_core.config.env import environment
from lemon_core.errors import LemonError
from lemon_core.master_key import MasterKeyChain, default_providers
from lemon_core.secret_errors import SecretsError

Reason = Literal[
    "no_ready_provider", "credential_not_usable", "model_provider_mismatch", "embedded_model"
]


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The global file; `problem` is what is wrong with it, and None when it is only missing."""

    complete: bool
    path: Path
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SecretsState:
    """The master key: the place that it comes from, or the code of what is wrong with it."""

    complete: bool
    source: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ProviderStep:
    """Who answers. `embedded_model` is the one reason with which the step is complete."""

    complete: bool
    provider: str | None = None
    model: str | None = None
    credential_ready: bool = False
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class SetupState:
    """The three steps of a setup."""

    config: ConfigState
    secrets: SecretsState
    provider: ProviderStep

    @property
    def complete(self) -> bool:
        """Whether no step is pending."""
        return self.config.complete and self.secrets.complete and self.provider.complete


async def setup_state(context: CommandContext, config_path: Path | None = None) -> SetupState:
    """The state of the setup for this home.

    Raises `StoreError`, and `ConfigError` for a file whose engine keys nothing can be made of.
    """
    context = at_config(context, config_path)
    config = _config(context)
    secrets = await _secrets(context)
    async with provider_view(context) as view:
        return SetupState(config, secrets, await provider_step(view))


async def setup_required(context: CommandContext, config_path: Path | None = None) -> bool:
    """Whether a step is pending; doubt counts as one."""
    try:
        return not (await setup_state(context, config_path)).complete
    except (LemonError, OSError):
        return True


async def provider_step(view: ProviderView) -> ProviderStep:
    """Who answers by default, and whether that one can."""
    defaults, table = view.settings.defaults, await view.table()
    led, model_id = split_spec(defaults.model, table.names) if defaults.model else (None, None)
    named = normal_name(defaults.provider) if defaults.provider else None
    if named and led and named != led:
        return ProviderStep(False, named, defaults.model, reason="model_provider_mismatch")
    chosen = named or led or _owner(model_id, view)
    model = f"{chosen}:{model_id}" if chosen and model_id else None
    if chosen == LOCAL_PROVIDER:
        return _embedded(table)
    if chosen is None:
        first = next(iter(table.ready), None)
        if first is None:
            return _embedded(table)
        chosen = first.name
    if (await view.usable(chosen)).is_usable:
        return ProviderStep(True, chosen, model, credential_ready=True)
    return ProviderStep(False, chosen, model, reason="credential_not_usable")


def _embedded(table: ProviderTable) -> ProviderStep:
    if table.local.is_ready:
        return ProviderStep(True, LOCAL_PROVIDER, reason="embedded_model")
    return ProviderStep(False, reason="no_ready_provider")


def _owner(model_id: str | None, view: ProviderView) -> str | None:
    """The provider of a default model that names none."""
    if model_id is None:
        return None
    from lemon_ai.catalog import Catalog

    found = Catalog().find_by_id(model_id)
    return None if found is None else found.provider


def _config(context: CommandContext) -> ConfigState:
    path = context.paths.config_file
    if not path.is_file():
        return ConfigState(False, path)
    errors = inspected(context, context.cwd).errors
    return ConfigState(not errors, path, errors[0] if errors else None)


async def _secrets(context: CommandContext) -> SecretsState:
    environ, _, _ = environment(context.paths, context.environ)
    try:
        key = await MasterKeyChain(default_providers(context.paths, environ)).load()
    except SecretsError as exc:
        return SecretsState(False, problem=exc.code)
    return SecretsState(True, key.source)
