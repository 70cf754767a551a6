"""Providers, credentials and the choice of the model."""

from lemon_agent.runtime.credentials import ProviderAccess, ProviderTable
from lemon_agent.runtime.model_runtime import ModelRuntime, model_runtime
from lemon_agent.runtime.names import canonical_name
from lemon_agent.runtime.routing import ModelChoice, NoModel, UnknownModel, choose_model

__all__ = [
    "ModelChoice",
    "ModelRuntime",
    "NoModel",
    "ProviderAccess",
    "ProviderTable",
    "UnknownModel",
    "canonical_name",
    "choose_model",
    "model_runtime",
]
