"""Vertex: where a call goes, and which token goes with it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from aiohttp import web
from anyio.abc import SocketAttribute, SocketStream
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lemon_ai import (
    Client,
    Context,
    ErrorInfo,
    Event,
    EventStream,
    Model,
    ModelError,
    StreamOptions,
    UserMessage,
)
from lemon_ai.adapters.google import vertex_base, vertex_host
from lemon_ai.adapters.vertex_tokens import MARGIN_MS
from lemon_ai.testing import FakeProviderServer, RecordedRequest, Turn
from lemon_ai.tests.support import HELLO, adapter_request

pytestmark = pytest.mark.anyio

PLACE = {"project": "fake-project", "location": "us-central1"}


class TokenEndpoint:
    """Gives `token-1`, `token-2`, …; each lives for `lifetime_s`."""

    def __init__(self, lifetime_s: int = 3_600) -> None:
        self.lifetime_s = lifetime_s
        self.requests: list[RecordedRequest] = []
        self.refusal: web.Response | None = None

    def __call__(self, request: RecordedRequest) -> object:
        self.requests.append(request)
        if self.refusal is not None:
            return self.refusal
        token = f"token-{len(self.requests)}"
        return {"access_token": token, "expires_in": self.lifetime_s, "token_type": "Bearer"}


@pytest.fixture
def endpoint() -> TokenEndpoint:
    return TokenEndpoint()


@pytest.fixture
async def provider(endpoint: TokenEndpoint) -> AsyncIterator[FakeProviderServer]:
    async with FakeProviderServer(default=Turn(text="ok"), probes={"/token": endpoint}) as server:
        yield server


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


@pytest.fixture
def account(provider: FakeProviderServer, private_key: str) -> dict[str, str]:
    """A service account whose tokens come from the fake."""
    return {
        "type": "service_account",
        "project_id": "elsewhere",
        "private_key_id": "1",
        "private_key": private_key,
        "client_email": "lemon@fake-project.iam.gserviceaccount.com",
        "token_uri": f"{provider.origin}/token",
    }


def gemini(base_url: str = "", **changes: Any) -> Model:
    fields = {
        "id": "gemini-2.5-flash",
        "api": "google_vertex",
        "provider": "google_vertex",
        "base_url": base_url,
    }
    return Model.model_validate({**fields, **changes})


async def call(
    provider: FakeProviderServer,
    options: StreamOptions | None = None,
    env: Mapping[str, str] | None = None,
    client: Client | None = None,
) -> Mapping[str, str]:
    """The headers of the request that this call makes."""
    options = (options or StreamOptions()).model_copy(update=PLACE)
    model = gemini(provider.origin)
    if client is not None:
        await client.complete(model, HELLO, options)
    else:
        async with Client(env=env or {}) as own:
            await own.complete(model, HELLO, options)
    return provider.requests[-1].headers


# -- where ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("us-central1", "us-central1-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("us", "aiplatform.us.rep.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_the_host_of_a_location(location: str, host: str) -> None:
    assert vertex_host(location) == host
    request = adapter_request(gemini(), options=StreamOptions(project="p", location=location))
    assert vertex_base(request) == f"https://{host}/v1/projects/p/locations/{location}"


def base(base_url: str = "", env: Mapping[str, str] | None = None, **options: Any) -> object:
    settings = StreamOptions.model_validate(options)
    found = vertex_base(adapter_request(gemini(base_url), options=settings, env=env))
    return (found.code, found.category) if isinstance(found, ErrorInfo) else found


def test_project_and_location() -> None:
    env = {"GOOGLE_CLOUD_PROJECT": "of-env", "GOOGLE_CLOUD_LOCATION": "europe-west4"}
    tail = "/projects/of-env/locations/europe-west4"
    assert base(env=env) == f"https://europe-west4-aiplatform.googleapis.com/v1{tail}"
    assert base("http://proxy.example", env) == f"http://proxy.example/v1{tail}"
    assert base("http://proxy.example/v1beta1/", env) == f"http://proxy.example/v1beta1{tail}"
    whole = "http://proxy.example/v1/projects/a/locations/b"
    assert base(whole) == whole
    given = {"google_vertex": {"project": "mine", "location": "global"}}
    found = base(env=env, provider_options=given)
    assert found == "https://aiplatform.googleapis.com/v1/projects/mine/locations/global"
    old = {"GCLOUD_PROJECT": "old", "GOOGLE_CLOUD_LOCATION": "us"}
    assert str(base(env=old)).endswith("/projects/old/locations/us")


def test_without_project_or_location_there_is_no_call() -> None:
    assert base(location="us") == ("missing_project", "client")
    assert base(project="p") == ("missing_location", "client")
    assert base(project="p", location="evil.example/") == ("missing_location", "client")


async def test_a_missing_project_is_an_error_event(client: Client) -> None:
    with pytest.raises(ModelError, match="GOOGLE_CLOUD_PROJECT"):
        await client.complete(gemini(), HELLO)


# -- tokens --------------------------------------------------------------------------------------


async def test_a_token_that_is_given(provider: FakeProviderServer) -> None:
    headers = await call(provider, StreamOptions(access_token="mine", service_account_json="{}"))
    assert headers["authorization"] == "Bearer mine"
    path = provider.requests[-1].path
    assert path == (
        "/v1/projects/fake-project/locations/us-central1/publishers/google/models/"
        "gemini-2.5-flash:streamGenerateContent"
    )
    dumped = StreamOptions(access_token="mine", service_account_json="{}")
    assert "mine" not in repr(dumped)


async def test_a_service_account_gets_a_token_that_is_kept(
    provider: FakeProviderServer, account: dict[str, str], endpoint: TokenEndpoint
) -> None:
    options = StreamOptions(service_account_json=json.dumps(account))
    async with Client(env={}) as client:
        first = await call(provider, options, client=client)
        second = await call(provider, options, client=client)
    assert first["authorization"] == second["authorization"] == "Bearer token-1"
    (request,) = endpoint.requests
    assert request.body["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"


async def test_a_token_near_its_end_is_renewed(
    provider: FakeProviderServer, account: dict[str, str], endpoint: TokenEndpoint
) -> None:
    options = StreamOptions(service_account_json=json.dumps(account))
    endpoint.lifetime_s = timedelta(milliseconds=MARGIN_MS).seconds - 1
    async with Client(env={}) as client:
        tokens = [await call(provider, options, client=client) for _ in range(2)]
    assert [t["authorization"] for t in tokens] == ["Bearer token-1", "Bearer token-2"]


async def test_calls_that_begin_together_ask_for_one_token(
    provider: FakeProviderServer, account: dict[str, str], endpoint: TokenEndpoint
) -> None:
    options = StreamOptions.model_validate(
        {**PLACE, "provider_options": {"google_vertex": {"service_account_json": account}}}
    )
    async with Client(env={}) as client:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    context = Context(messages=[UserMessage(content=str(number))])
                    tasks.start_soon(client.complete, gemini(provider.origin), context, options)
    assert len(provider.requests) == 5
    assert len(endpoint.requests) == 1


async def test_accounts_have_tokens_of_their_own(
    provider: FakeProviderServer, account: dict[str, str], endpoint: TokenEndpoint
) -> None:
    other = {**account, "client_email": "other@fake-project.iam.gserviceaccount.com"}
    async with Client(env={}) as client:
        for document in (account, other, account):
            options = StreamOptions(service_account_json=json.dumps(document))
            await call(provider, options, client=client)
    assert len(endpoint.requests) == 2


def at(provider: FakeProviderServer, **variables: str) -> dict[str, str]:
    """An environment that sets the fake as the base URL of Vertex."""
    return {"GOOGLE_VERTEX_BASE_URL": provider.origin, **variables}


async def test_the_environment_names_an_account_or_its_file(
    provider: FakeProviderServer,
    account: dict[str, str],
    endpoint: TokenEndpoint,
    tmp_path: Path,
) -> None:
    file = tmp_path / "account.json"
    file.write_text(json.dumps(account))
    env = at(provider, GOOGLE_APPLICATION_CREDENTIALS=str(file))
    assert (await call(provider, env=env))["authorization"] == "Bearer token-1"
    env = at(provider, GOOGLE_APPLICATION_CREDENTIALS_JSON=json.dumps(account))
    assert (await call(provider, env=env))["authorization"] == "Bearer token-2"
    assert len(endpoint.requests) == 2


async def test_a_login_of_a_user_in_a_file(provider: FakeProviderServer, tmp_path: Path) -> None:
    login = {
        "type": "authorized_user",
        "client_id": "id",
        "client_secret": "secret",
        "refresh_token": "refresh",
        "token": "of-the-login",
        "expiry": "2999-01-01T00:00:00Z",
        "quota_project_id": "who-pays",
    }
    file = tmp_path / "login.json"
    file.write_text(json.dumps(login))
    headers = await call(provider, env=at(provider, GOOGLE_APPLICATION_CREDENTIALS=str(file)))
    assert headers["authorization"] == "Bearer of-the-login"
    assert headers["x-goog-user-project"] == "who-pays"


async def test_the_machines_own_login(
    provider: FakeProviderServer,
    account: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What gcloud leaves in its folder, found by google-auth itself."""
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(account))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "fake-project")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", provider.origin)
    async with Client() as client:
        headers = await call(provider, client=client)
    assert headers["authorization"] == "Bearer token-1"


async def test_a_client_with_another_environment_gets_no_login_of_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    options = StreamOptions.model_validate(PLACE)
    async with Client(env={}) as client:
        with pytest.raises(ModelError, match="set GOOGLE_APPLICATION_CREDENTIALS"):
            await client.complete(gemini(), HELLO, options)


@pytest.mark.behaviour("lemon_ai.17")
async def test_credentials_of_the_environment_stay_with_google(
    provider: FakeProviderServer, account: dict[str, str], endpoint: TokenEndpoint
) -> None:
    env = {"GOOGLE_APPLICATION_CREDENTIALS_JSON": json.dumps(account)}
    with pytest.raises(ModelError, match="pass access_token or service_account_json"):
        await call(provider, env=env)
    env["GOOGLE_VERTEX_BASE_URL"] = "https://elsewhere.example"
    with pytest.raises(ModelError, match="pass access_token"):
        await call(provider, env=env)
    assert provider.requests == endpoint.requests == []


async def test_a_refused_account(
    provider: FakeProviderServer, account: dict[str, str], endpoint: TokenEndpoint
) -> None:
    refusal = {"error": "invalid_grant", "error_description": "Account deleted"}
    endpoint.refusal = web.json_response(refusal, status=400)
    options = StreamOptions(service_account_json=json.dumps(account))
    with pytest.raises(ModelError, match="Account deleted") as caught:
        await call(provider, options)
    error = caught.value.info()
    assert (error.category, error.code) == ("auth", "token_refused")
    assert account["private_key"] not in str(caught.value)
    assert provider.requests == []


async def test_cancelling_while_the_token_endpoint_is_silent(account: dict[str, str]) -> None:
    asked, released = anyio.Event(), anyio.Event()

    async def hold(peer: SocketStream) -> None:
        async with peer:
            asked.set()
            await released.wait()

    events: list[Event] = []
    with anyio.fail_after(5):
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as tasks,
            Client(env={}) as client,
        ):
            tasks.start_soon(listener.serve, hold)
            port = listener.extra(SocketAttribute.local_port)
            silent = {**account, "token_uri": f"http://127.0.0.1:{port}/token"}
            options = StreamOptions(service_account_json=json.dumps(silent), **PLACE)
            async with client.stream(gemini(), HELLO, options) as stream:
                tasks.start_soon(_cancel_once, asked, stream)
                events = [event async for event in stream]
            released.set()  # lets the thread that waits for the answer go
            tasks.cancel_scope.cancel()
    assert [event.type for event in events] == ["start", "canceled"]


async def _cancel_once(asked: anyio.Event, stream: EventStream) -> None:
    await asked.wait()
    stream.cancel("aborted")


@pytest.mark.parametrize("document", ["{", "[]", '{"type": "gdch_service_account"}'])
async def test_credentials_that_cannot_be_read(provider: FakeProviderServer, document: str) -> None:
    with pytest.raises(ModelError, match="no access token for Vertex") as caught:
        await call(provider, StreamOptions(service_account_json=document))
    assert caught.value.info().category == "auth"


async def test_the_token_endpoint_is_out_of_reach(
    provider: FakeProviderServer, account: dict[str, str]
) -> None:
    nowhere = urlsplit(provider.origin)._replace(netloc="127.0.0.1:1").geturl()
    options = StreamOptions(service_account_json=json.dumps({**account, "token_uri": nowhere}))
    with pytest.raises(ModelError) as caught:
        await call(provider, options)
    assert caught.value.info().category == "transient"
    assert caught.value.info().retryable
