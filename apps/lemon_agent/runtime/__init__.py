"""Providers, credentials, the choice of the model, and who stands in for whom."""

from lemon_agent.runtime.choice import ModelChoice, NoModel, UnknownModel, choose_model
from lemon_agent.runtime.credentials import Credential, Credentials
from lemon_agent.runtime.model_runtime import ModelRuntime
from lemon_agent.runtime.names import canonical_name, normal_name
from lemon_agent.runtime.of_runtime import model_runtime
from lemon_agent.runtime.providers import ProviderAccess, ProviderTable
from lemon_agent.runtime.settings import ModelSettings
from lemon_agent.runtime.status import ProviderStatus

__all__ = [
    "Credential",
    "Credentials",
    "ModelChoice",
    "ModelRuntime",
    "ModelSettings",
    "NoModel",
    "ProviderAccess",
    "ProviderStatus",
    "ProviderTable",
    "UnknownModel",
    "canonical_name",
    "choose_model",
    "model_runtime",
    "normal_name",
]
