"""Bedrock: where a call goes, and what authorises it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lemon_ai import Catalog, Client, Model, ModelError, StreamOptions
from lemon_ai.adapters.aws_signing import AwsCredentialsError, bedrock_base, region_of
from lemon_ai.testing import FakeProviderServer, RecordedRequest, Turn
from lemon_ai.tests.sigv4 import parts_of, signature_of
from lemon_ai.tests.support import HELLO, adapter_request

pytestmark = pytest.mark.anyio

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
ARN = "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-v1:0"
KEYS = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}


@pytest.fixture
async def provider() -> AsyncIterator[FakeProviderServer]:
    async with FakeProviderServer(default=Turn(text="ok")) as server:
        yield server


def model_of(base_url: str = "", model_id: str = "m") -> Model:
    fields = {"id": model_id, "api": "bedrock_converse_stream", "provider": "amazon_bedrock"}
    return Model.model_validate({**fields, "base_url": base_url})


def given(**options: Any) -> StreamOptions:
    return StreamOptions(provider_options={"amazon_bedrock": options})


async def call(
    provider: FakeProviderServer,
    options: StreamOptions | None = None,
    env: Mapping[str, str] | None = None,
    model_id: str = "m",
) -> RecordedRequest:
    """The request that this call makes."""
    async with Client(env=env or {}) as client:
        await client.complete(model_of(provider.origin, model_id), HELLO, options)
    return provider.requests[-1]


# -- the signature -------------------------------------------------------------------------------


def test_the_check_itself_against_published_vectors() -> None:
    """Of AWS's own test suite: a plain GET, and a POST with a body."""
    head = f"AWS4-HMAC-SHA256 Credential={KEY}/20150830/us-east-1/service/aws4_request, "
    headers = {
        "host": "example.amazonaws.com",
        "x-amz-date": "20150830T123600Z",
        "authorization": f"{head}SignedHeaders=host;x-amz-date, Signature={'0' * 64}",
    }
    found = signature_of(SECRET, "GET", "/", headers, b"")
    assert found == "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    form = {**headers, "content-type": "application/x-www-form-urlencoded"}
    names = "SignedHeaders=content-type;host;x-amz-date"
    form["authorization"] = f"{head}{names}, Signature={'0' * 64}"
    found = signature_of(SECRET, "POST", "/", form, b"Param1=value1")
    assert found == "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"


@pytest.mark.behaviour("lemon_ai.21")
@pytest.mark.parametrize(
    ("model_id", "path"),
    [
        ("anthropic.claude-v1:0", "anthropic.claude-v1%3A0"),
        (ARN, ARN.replace(":", "%3A").replace("/", "%2F")),
        ("odd id+~%", "odd%20id%2B~%25"),
    ],
)
async def test_the_signature_of_an_id_is_botocores(
    provider: FakeProviderServer, model_id: str, path: str
) -> None:
    """Encoded once in the path, which goes out untouched, and once more in what is signed."""
    request = await call(
        provider, given(**KEYS, aws_region="eu-west-1", aws_session_token="session"), None, model_id
    )
    assert request.raw_path == f"/model/{path}/converse-stream"
    headers = request.headers
    parts = parts_of(headers["authorization"])
    assert (parts["key"], parts["region"], parts["service"]) == (KEY, "eu-west-1", "bedrock")
    assert parts["names"] == "content-type;host;x-amz-date;x-amz-security-token"
    assert headers["x-amz-security-token"] == "session"
    expected = signature_of(SECRET, "POST", request.raw_path, headers, request.raw_body)
    assert parts["signature"] == expected == botocores(provider, request)
    assert SECRET not in str(headers)


def botocores(provider: FakeProviderServer, request: RecordedRequest) -> str:
    """The signature that botocore computes for what was received."""
    parts = parts_of(request.headers["authorization"])
    signed = AWSRequest(
        "POST",
        f"{provider.origin}{request.raw_path}",
        {name: request.headers[name] for name in parts["names"].split(";")},
        request.raw_body,
    )
    signed.context["timestamp"] = request.headers["x-amz-date"]
    auth = SigV4Auth(Credentials(KEY, SECRET, "session"), "bedrock", parts["region"])
    text = auth.string_to_sign(signed, auth.canonical_request(signed))
    return str(auth.signature(text, signed))


# -- where ---------------------------------------------------------------------------------------


def test_the_host_of_a_region() -> None:
    assert bedrock_base("eu-west-1") == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert bedrock_base("cn-north-1") == "https://bedrock-runtime.cn-north-1.amazonaws.com.cn"


def region(base_url: str = "", env: Mapping[str, str] | None = None, **options: Any) -> str:
    return region_of(adapter_request(model_of(base_url), options=given(**options), env=env))


def test_the_region() -> None:
    env = {"AWS_REGION": "ap-south-1", "AWS_DEFAULT_REGION": "sa-east-1"}
    assert region(env=env, aws_region="eu-west-1") == "eu-west-1"
    assert region(bedrock_base("us-west-2"), env) == "us-west-2"
    assert region(env=env) == "ap-south-1"
    assert region(env={"AWS_DEFAULT_REGION": "sa-east-1"}) == "sa-east-1"
    assert region() == "us-east-1"
    with pytest.raises(AwsCredentialsError, match="is no AWS region"):
        region(aws_region="evil.example/#")


def test_the_catalogue_leaves_the_host_to_the_region() -> None:
    assert all(model.base_url == "" for model in Catalog().get_models("amazon_bedrock"))


# -- the order of credentials --------------------------------------------------------------------

EVERYTHING = {
    "AWS_BEARER_TOKEN_BEDROCK": "bearer-of-env",
    "AWS_ACCESS_KEY_ID": "AKIDENV",
    "AWS_SECRET_ACCESS_KEY": "secret-of-env",
    "AWS_SESSION_TOKEN": "session-of-env",
}


def at(provider: FakeProviderServer, **variables: str) -> dict[str, str]:
    """An environment that sets the fake as Bedrock's base URL."""
    return {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": provider.origin, **variables}


async def test_keys_of_the_caller_come_first(provider: FakeProviderServer) -> None:
    options = given(**KEYS).model_copy(update={"api_key": None})
    headers = (await call(provider, options, at(provider, **EVERYTHING))).headers
    assert parts_of(headers["authorization"])["key"] == KEY
    assert "x-amz-security-token" not in headers


async def test_then_a_bearer_key(provider: FakeProviderServer) -> None:
    headers = (await call(provider, None, at(provider, **EVERYTHING))).headers
    assert headers["authorization"] == "Bearer bearer-of-env"
    assert not any(name.startswith("x-amz") for name in headers)
    headers = (await call(provider, given(api_key="given"), EVERYTHING)).headers
    assert headers["authorization"] == "Bearer given"


async def test_then_keys_of_the_environment(provider: FakeProviderServer) -> None:
    env = {name: value for name, value in EVERYTHING.items() if "BEARER" not in name}
    request = await call(provider, None, at(provider, **env))
    parts = parts_of(request.headers["authorization"])
    assert (parts["key"], parts["region"]) == ("AKIDENV", "us-east-1")
    assert request.headers["x-amz-security-token"] == "session-of-env"
    expected = signature_of(
        "secret-of-env", "POST", request.raw_path, request.headers, request.raw_body
    )
    assert parts["signature"] == expected


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of its own for the process, without a network to ask."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", *EVERYTHING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


async def test_then_what_botocore_finds(
    provider: FakeProviderServer, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"[{name}]\naws_access_key_id = AKID{name}\naws_secret_access_key = s\n" for name in "AB"
    ]
    (machine / "credentials").write_text("".join(lines))
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", provider.origin)
    monkeypatch.setenv("AWS_PROFILE", "B")
    async with Client() as client:
        for _ in range(2):
            await client.complete(model_of(), HELLO)
    for request in provider.requests:
        assert parts_of(request.headers["authorization"])["key"] == "AKIDB"


@pytest.mark.parametrize(("profile", "text"), [(None, "set AWS_BEARER"), ("gone", "gone")])
async def test_a_machine_without_credentials(
    machine: Path, monkeypatch: pytest.MonkeyPatch, profile: str | None, text: str
) -> None:
    if profile is not None:
        monkeypatch.setenv("AWS_PROFILE", profile)
    async with Client() as client:
        with pytest.raises(ModelError, match=text) as caught:
            await client.complete(model_of(), HELLO)
    assert caught.value.info().category == "auth"


async def test_a_client_with_another_environment_gets_nothing_of_the_machine(
    machine: Path,
) -> None:
    keys = "[default]\naws_access_key_id = AKID\naws_secret_access_key = s\n"
    (machine / "credentials").write_text(keys)
    async with Client(env={}) as client:
        with pytest.raises(ModelError, match="no AWS credentials for Bedrock: set AWS_BEARER"):
            await client.complete(model_of(), HELLO)


@pytest.mark.behaviour("lemon_ai.17")
@pytest.mark.parametrize("base_url", ["", "https://elsewhere.example"])
async def test_credentials_of_the_environment_stay_with_aws(
    provider: FakeProviderServer, base_url: str
) -> None:
    env = EVERYTHING | ({"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": base_url} if base_url else {})
    with pytest.raises(ModelError, match="pass api_key, or aws_access_key_id"):
        await call(provider, None, env)
    assert provider.requests == []


async def test_half_a_pair_of_keys_is_an_error(provider: FakeProviderServer) -> None:
    with pytest.raises(ModelError, match="together"):
        await call(provider, given(aws_access_key_id=KEY), at(provider, **EVERYTHING))
