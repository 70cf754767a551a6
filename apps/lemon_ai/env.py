"""Every environment variable that this package reads.

Data for whoever keeps a register of variables; nothing here reads one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from lemon_ai.caching import RETENTION_VARIABLE
from lemon_ai.providers import PROVIDERS


@dataclass(frozen=True, slots=True)
class EnvVariable:
    """One variable. The value of a `secret` is never shown."""

    name: str
    type: Literal["string", "integer", "boolean"] = "string"
    default: str | int | bool | None = None
    doc: str = ""
    secret: bool = False


def _of_providers() -> Iterator[EnvVariable]:
    for row in PROVIDERS.values():
        for name in row.key_variables:
            yield EnvVariable(name, doc=f"Key of provider {row.id}.", secret=True)
        if row.base_url_variable is not None:
            doc = f"Base URL that the key of provider {row.id} belongs to."
            yield EnvVariable(row.base_url_variable, default=row.base_url or None, doc=doc)
        if row.resource_variable is not None:
            doc = f"Name in the host of provider {row.id}: {row.resource_url}."
            yield EnvVariable(row.resource_variable, doc=doc)


_OF_APIS: Final = (
    EnvVariable("AZURE_OPENAI_API_VERSION", default="v1", doc="Version of Azure's API."),
    EnvVariable(
        "AZURE_OPENAI_DEPLOYMENT_NAME_MAP",
        doc="Azure's deployments by model, for example `gpt-5.1=mine,gpt-5.4=other`.",
    ),
    EnvVariable("GOOGLE_CLOUD_PROJECT", doc="Project of Vertex calls."),
    EnvVariable("GCLOUD_PROJECT", doc="The same, where GOOGLE_CLOUD_PROJECT is not set."),
    EnvVariable("GOOGLE_CLOUD_LOCATION", doc="Location of Vertex calls."),
    EnvVariable(
        "GOOGLE_APPLICATION_CREDENTIALS_JSON",
        doc="Credentials of Vertex calls, as the text of their JSON file.",
        secret=True,
    ),
    EnvVariable("GOOGLE_APPLICATION_CREDENTIALS", doc="File with credentials of Vertex calls."),
    EnvVariable("CLOUDSDK_CONFIG", doc="Folder in which gcloud keeps its credentials."),
    EnvVariable("NO_GCE_CHECK", "boolean", doc="Do not ask Google's metadata server."),
    EnvVariable("AWS_REGION", default="us-east-1", doc="Region of Bedrock calls."),
    EnvVariable("AWS_DEFAULT_REGION", doc="The same, where AWS_REGION is not set."),
    EnvVariable("AWS_PROFILE", doc="Profile that holds the credentials of Bedrock calls."),
    EnvVariable("AWS_DEFAULT_PROFILE", doc="The same, where AWS_PROFILE is not set."),
    EnvVariable("AWS_ACCESS_KEY_ID", doc="Access key of Bedrock calls.", secret=True),
    EnvVariable("AWS_SECRET_ACCESS_KEY", doc="Secret of that access key.", secret=True),
    EnvVariable("AWS_SESSION_TOKEN", doc="Token of a temporary access key.", secret=True),
    EnvVariable(
        RETENTION_VARIABLE,
        doc="`long` asks vendors to keep the beginning of a prompt for longer.",
    ),
    EnvVariable(
        "LEMON_KIMI_MAX_REQUEST_MESSAGES",
        "integer",
        200,
        "Messages that go with a request to Kimi, the newest ones.",
    ),
)
_OF_HTTP: Final = (
    EnvVariable("HTTP_PROXY", doc="Proxy for http URLs."),
    EnvVariable("HTTPS_PROXY", doc="Proxy for https URLs."),
    EnvVariable("ALL_PROXY", doc="Proxy for both."),
    EnvVariable("NO_PROXY", doc="Hosts without a proxy, with commas."),
    EnvVariable(
        "LEMON_AI_HTTP_TRACE",
        "boolean",
        False,
        "Log sizes and ids of requests, and errors' bodies.",
    ),
    EnvVariable(
        "LEMON_AI_ERROR_DUMPS",
        "boolean",
        False,
        "Write refused requests, without texts and keys, to ~/.lemon/logs/http-errors.",
    ),
    EnvVariable("HOME", doc="Where ~ is, for these files."),
)
_OF_DIAGNOSTICS: Final = (
    EnvVariable(
        "LEMON_AI_PROMPT_DIAGNOSTICS",
        "boolean",
        False,
        "Tell sizes, counts and hashes of each model call.",
    ),
    EnvVariable("LEMON_AI_PROMPT_DIAGNOSTICS_LOG_LEVEL", default="info", doc="Level of that line."),
    EnvVariable(
        "LEMON_AI_PROMPT_DIAGNOSTICS_TOP_N",
        "integer",
        5,
        "How many of the largest messages it names.",
    ),
)

# A variable that serves two providers is listed once, with the first.
DECLARATIONS: Final[tuple[EnvVariable, ...]] = tuple(
    {
        variable.name: variable
        for variable in reversed((*_of_providers(), *_OF_APIS, *_OF_HTTP, *_OF_DIAGNOSTICS))
    }.values()
)[::-1]
