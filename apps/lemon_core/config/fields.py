"""Field types and marks that the section models share."""

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# The largest integer that every JSON reader keeps exactly.
MAX_INT: Final = 2**53 - 1


class ProjectSafe:
    """Marks a key that a project's file may set: it changes taste, never power."""


PROJECT_SAFE: Final = ProjectSafe()


class Section(BaseModel):
    """Base of every section: frozen, strict about types, silent about values.

    Unknown keys are found by `keys.walk`, which can name them, and are no error.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="ignore", defer_build=True, hide_input_in_errors=True
    )


def _bind_address(text: str) -> str:
    named = {"localhost": "127.0.0.1", "any": "0.0.0.0"}.get(text)
    if named:
        return named
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("must be an IP address, localhost or any") from None


def _http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return text


Text = Annotated[str, Field(min_length=1)]
# Strict about their items only: a tuple stays immutable, and TOML has nothing but lists.
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Positive = Annotated[int, Field(ge=1, le=MAX_INT)]
NotNegative = Annotated[int, Field(ge=0, le=MAX_INT)]
Port = Annotated[int, Field(ge=0, le=65_535)]
BindAddress = Annotated[str, AfterValidator(_bind_address)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
QueueMode = Literal["collect", "followup", "steer", "steer_backlog", "redirect", "interrupt"]
# Known keys whose owner checks them: nothing here reads what is inside.
Opaque = Mapping[str, object]
