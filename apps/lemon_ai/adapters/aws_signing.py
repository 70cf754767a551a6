"""What authorises a call to Bedrock: a bearer key, or a signature with AWS keys.

In order: keys that the caller passes, a bearer key, keys of the environment, botocore's chain
(profile, single sign-on, container, instance). botocore is imported and asked in a worker thread:
it takes a while to load, and its chain may use the network. What comes from the environment goes to
AWS, or to the base URL that the environment sets, and nowhere else. The keys themselves never
become headers, but for the session token, which the signature asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from pydantic import SecretStr

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.process_env import is_process_environment
from lemon_ai.compat import host_of
from lemon_ai.credentials import may_have_environment, options_for
from lemon_ai.errors import AIError
from lemon_ai.types import ErrorInfo

SERVICE: Final = "bedrock"
DEFAULT_REGION: Final = "us-east-1"
BEARER_VARIABLE: Final = "AWS_BEARER_TOKEN_BEDROCK"
_REGION = re.compile(r"[a-z0-9-]+")
_HOST = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)")


class AwsCredentialsError(AIError):
    """Nothing authorises the call; `error` says why and what to set."""

    code = "missing_credentials"

    def __init__(self, message: str, *, category: str = "auth") -> None:
        super().__init__(message)
        self.error = ErrorInfo.model_validate(
            {"category": category, "code": self.code, "message": message}
        )

    def info(self) -> ErrorInfo:
        """The same as data."""
        return self.error


@dataclass(frozen=True, slots=True)
class AwsKeys:
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Chain:
    """botocore's own search, with a profile where one is named."""

    profile: str | None


class AwsAuthorization:
    """Authorises the calls of one adapter; what the chain found is kept and renewed by botocore."""

    def __init__(self) -> None:
        self._found: dict[str | None, Any] = {}
        self._is_loaded = False

    async def headers(self, request: AdapterRequest, url: str, body: bytes) -> Mapping[str, str]:
        """The headers to add to `POST url`. Raises AwsCredentialsError."""
        keys = _option_keys(request)
        if keys is None and (bearer := _bearer(request)):
            if not self._is_loaded:  # the frames of the answer need it
                await anyio.to_thread.run_sync(_load)
                self._is_loaded = True
            return {"authorization": f"Bearer {bearer}"}
        source = keys or _environment(request)
        return await anyio.to_thread.run_sync(
            self._sign, source, region_of(request), url, body, abandon_on_cancel=True
        )

    def _sign(
        self, source: AwsKeys | _Chain, region: str, url: str, body: bytes
    ) -> Mapping[str, str]:
        _load()
        return sign(self._ask(source) if isinstance(source, _Chain) else source, region, url, body)

    def _ask(self, chain: _Chain) -> AwsKeys:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        try:
            found = self._found.get(chain.profile)
            found = found or Session(profile=chain.profile).get_credentials()
            if found is None:
                raise AwsCredentialsError(_what_to_set("for Bedrock"))
            self._found[chain.profile] = found
            frozen = found.get_frozen_credentials()
        except BotoCoreError as exc:
            raise AwsCredentialsError(f"no AWS credentials for Bedrock: {exc}") from exc
        return AwsKeys(frozen.access_key, frozen.secret_key, frozen.token)


def sign(keys: AwsKeys, region: str, url: str, body: bytes) -> Mapping[str, str]:
    """The headers of a signed `POST url` with this JSON body, names in lower case."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    # Only what this call cannot do without is signed: a proxy may change the rest.
    signed = AWSRequest("POST", url, {"content-type": "application/json"}, body)
    credentials = Credentials(keys.access_key, keys.secret_key, keys.token)
    SigV4Auth(credentials, SERVICE, region).add_auth(signed)
    names = ("authorization", "x-amz-date", "x-amz-security-token")
    return {name: str(signed.headers[name]) for name in names if name in signed.headers}


def region_of(request: AdapterRequest) -> str:
    """The region that is called. Raises AwsCredentialsError for one that cannot be a host."""
    env = request.env
    found = _HOST.fullmatch(host_of(request.base_url))
    region = options_for(request.model, request.options).get("aws_region")
    region = region or (found and found[1]) or env.get("AWS_REGION")
    region = str(region or env.get("AWS_DEFAULT_REGION") or DEFAULT_REGION)
    if not _REGION.fullmatch(region):
        raise AwsCredentialsError(f"{region!r} is no AWS region", category="client")
    return region


def bedrock_base(region: str) -> str:
    """The base URL of a region."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://bedrock-runtime.{region}.{suffix}"


def _load() -> None:
    try:
        import botocore.auth
        import botocore.eventstream
        import botocore.session  # noqa: F401
    except ImportError as exc:
        raise AwsCredentialsError("Bedrock needs botocore: install it", category="client") from exc


def _option_keys(request: AdapterRequest) -> AwsKeys | None:
    given = options_for(request.model, request.options)
    access, secret = _text(given, "aws_access_key_id"), _text(given, "aws_secret_access_key")
    if access and secret:
        return AwsKeys(access, secret, _text(given, "aws_session_token"))
    if access or secret:
        raise AwsCredentialsError("pass aws_access_key_id and aws_secret_access_key together")
    return None


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _bearer(request: AdapterRequest) -> str | None:
    if request.api_key:
        return request.api_key
    return request.env.get(BEARER_VARIABLE) if _may_have_environment(request) else None


def _environment(request: AdapterRequest) -> AwsKeys | _Chain:
    env = request.env
    if not _may_have_environment(request):
        raise AwsCredentialsError(
            f"no AWS credentials for {request.base_url}: pass api_key, or aws_access_key_id and "
            "aws_secret_access_key"
        )
    access, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
    if access and secret:
        return AwsKeys(access, secret, env.get("AWS_SESSION_TOKEN"))
    if not is_process_environment(env, "AWS_"):
        raise AwsCredentialsError(_what_to_set("for Bedrock"))
    return _Chain(env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE"))


def _may_have_environment(request: AdapterRequest) -> bool:
    base_url = request.base_url
    is_aws = _HOST.fullmatch(host_of(base_url)) is not None and base_url.startswith("https://")
    return may_have_environment("amazon_bedrock", base_url, request.env, is_home=is_aws)


def _what_to_set(where: str) -> str:
    return (
        f"no AWS credentials {where}: set {BEARER_VARIABLE}, or AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or log in with the AWS CLI"
    )
