"""The `runtime.provider_routing` section: which credentials and providers stand in for others."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from lemon_core.config.fields import Section, Text, Texts


def _reference(text: str) -> str:
    kind, colon, name = text.partition(":")
    if colon and (kind not in ("secret", "env") or not name):
        raise ValueError("must be secret:<name>, env:<variable> or the name of a secret")
    return text


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Reference = Annotated[Text, AfterValidator(_reference)]
# One reference may stand without brackets.
References = Annotated[
    tuple[Reference, ...], BeforeValidator(_as_list), Field(strict=False, min_length=1)
]


class CredentialPool(Section):
    """Several credentials for the same work, by provider and in order."""

    # Without any, the providers of `credentials`.
    providers: Texts = ()
    strategy: Literal["priority", "round_robin"] = "priority"
    credentials: Mapping[str, References] = {}

    @property
    def provider_names(self) -> tuple[str, ...]:
        """The providers that the pool serves."""
        return self.providers or tuple(self.credentials)


class RoutingProfile(Section):
    """A named way of choosing providers."""

    fallback_providers: Texts = ()
    credential_pool: Text | None = None
    # A provider's share of the work beside the others'.
    distribution: Mapping[str, Annotated[float, Field(gt=0)]] = {}


class ProviderRouting(Section):
    """What happens when a provider or its credential does not answer."""

    enabled: bool = True
    require_credentials: bool = True
    fallback_providers: Texts = ()
    default_pool: Text | None = None
    default_profile: Text | None = None
    credential_pools: Mapping[str, CredentialPool] = {}
    profiles: Mapping[str, RoutingProfile] = {}

    @field_validator("credential_pools", mode="after")
    @classmethod
    def _without_empty_pools(
        cls, pools: Mapping[str, CredentialPool]
    ) -> Mapping[str, CredentialPool]:
        return {name: pool for name, pool in pools.items() if pool.provider_names}

    def problems(self) -> list[tuple[tuple[str, ...], str]]:
        """What names a pool or a profile that is not there, as (path, message)."""
        pools: list[tuple[tuple[str, ...], str | None]] = [(("default_pool",), self.default_pool)]
        pools += [
            (("profiles", name, "credential_pool"), row.credential_pool)
            for name, row in self.profiles.items()
        ]
        found: list[tuple[tuple[str, ...], str]] = [
            (path, f"there is no credential pool {name!r}")
            for path, name in pools
            if name is not None and name not in self.credential_pools
        ]
        if self.default_profile is not None and self.default_profile not in self.profiles:
            found.append((("default_profile",), f"there is no profile {self.default_profile!r}"))
        return found
