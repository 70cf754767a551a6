"""Signing in, renewing, and keeping tokens to oneself."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest

from lemon_ai.oauth import (
    AuthorizationInput,
    AuthorizationRequest,
    OAuthClient,
    OAuthError,
    OAuthPayload,
    parse_authorization_input,
)
from lemon_ai.oauth_providers import OAUTH_PROVIDERS
from lemon_ai.oauth_secrets import OAuthSecrets
from lemon_ai.testing import FakeOAuth, FakeProviderServer
from lemon_ai.tests.support import Sleeps
from lemon_ai.transport import Transport

NOW_MS = 1_800_000_000_000


class Clock:
    """Wall time that the test moves."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


class Store:
    """Keeps what is persisted."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str]] = []

    async def __call__(self, name: str, value: str) -> None:
        self.written.append((name, value))


@pytest.fixture
def oauth() -> FakeOAuth:
    return FakeOAuth()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def signing(
    oauth: FakeOAuth, clock: Clock, sleeps: Sleeps
) -> AsyncIterator[Callable[..., OAuthClient]]:
    """Makes clients of the fake provider."""
    async with FakeProviderServer(probes=oauth.probes) as server:
        transport = Transport(env={})

        async def sleep(seconds: float) -> None:
            clock.ms += round(seconds * 1000)
            await sleeps(seconds)

        def make(**changes: object) -> OAuthClient:
            config = oauth.config(server.origin, **changes)
            return OAuthClient(config, transport, clock_ms=clock, sleep=sleep)

        try:
            yield make
        finally:
            await transport.aclose()


Signing = Callable[..., OAuthClient]


def stored(access: str, refresh: str | None, expires_at_ms: int | None) -> str:
    return OAuthPayload(
        "fake_oauth", access, refresh, expires_at_ms, NOW_MS - 5, NOW_MS - 5, {"account": "a"}
    ).to_secret()


# -- authorization code --------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.18")
async def test_a_sign_in_in_the_browser(oauth: FakeOAuth, signing: Signing) -> None:
    client = signing()
    seen: list[AuthorizationRequest] = []

    async def browser(request: AuthorizationRequest) -> str:
        seen.append(request)
        return oauth.sign_in(request.url)

    payload = await client.login(browser)
    assert json.loads(payload.to_secret()) == {
        "type": "fake_oauth",
        "access_token": "access-1",
        "refresh_token": "refresh-1",
        "expires_at_ms": NOW_MS + 3_600_000,
        "created_at_ms": NOW_MS,
        "updated_at_ms": NOW_MS,
    }
    query = parse_qs(urlsplit(seen[0].url).query)
    assert query["client_id"] == ["lemon-test"]
    assert query["scope"] == ["models offline_access"]
    assert query["redirect_uri"] == ["http://127.0.0.1:1455/callback"]
    assert oauth.asked[0]["redirect_uri"] == "http://127.0.0.1:1455/callback"


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.18")
async def test_the_values_of_pkce_verify(signing: Signing) -> None:
    requests = [signing().authorize_url() for _ in range(3)]
    for request in requests:
        query = {n: v[0] for n, v in parse_qs(urlsplit(request.url).query).items()}
        digest = hashlib.sha256(request.verifier.encode()).digest()
        assert query["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")
        assert query["code_challenge_method"] == "S256"
        assert query["state"] == request.state
        assert len(base64.urlsafe_b64decode(request.verifier + "=")) == 32
        assert len(base64.urlsafe_b64decode(request.state + "==")) == 16
        assert request.verifier not in request.url
    assert len({request.verifier for request in requests}) == 3
    assert len({request.state for request in requests}) == 3


@pytest.mark.anyio
async def test_a_verifier_that_does_not_fit_is_refused(oauth: FakeOAuth, signing: Signing) -> None:
    client = signing()
    redirect = oauth.sign_in(client.authorize_url().url)
    other = client.authorize_url()
    code = parse_authorization_input(redirect).code
    with pytest.raises(OAuthError, match="invalid_grant") as caught:
        await client.exchange_code(other, code)
    assert caught.value.reason == "refused"


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.18")
@pytest.mark.parametrize("state", ["state=other&", "state=&", ""])
async def test_another_state_is_refused_without_asking(
    state: str, oauth: FakeOAuth, signing: Signing
) -> None:
    client = signing()
    request = client.authorize_url()
    with pytest.raises(OAuthError) as caught:
        await client.exchange_code(request, f"http://127.0.0.1:1455/callback?{state}code=stolen")
    assert caught.value.reason == "state_mismatch"
    assert oauth.asked == []


@pytest.mark.anyio
async def test_a_code_may_be_typed_in(oauth: FakeOAuth, signing: Signing) -> None:
    client = signing()
    for form in ("{code}", "{code}#{state}"):
        request = client.authorize_url()
        code = parse_authorization_input(oauth.sign_in(request.url)).code
        answer = form.format(code=code, state=request.state)
        assert (await client.exchange_code(request, answer)).access_token.startswith("access-")
    with pytest.raises(OAuthError, match="another sign-in"):
        await client.exchange_code(request, "code#other")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("http://127.0.0.1/callback?error=access_denied&state=x", "denied"),
        ("http://127.0.0.1/callback", "missing_code"),
        ("", "missing_code"),
    ],
)
async def test_a_sign_in_that_came_to_nothing(answer: str, reason: str, signing: Signing) -> None:
    client = signing()
    with pytest.raises(OAuthError) as caught:
        await client.exchange_code(client.authorize_url(), answer)
    assert caught.value.reason == reason
    assert caught.value.info().category == "auth"


@pytest.mark.anyio
async def test_nobody_comes_back(signing: Signing) -> None:
    async def browser(request: AuthorizationRequest) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(5), pytest.raises(OAuthError) as caught:
        await signing().login(browser, timeout_ms=1)
    assert caught.value.reason == "timeout"


@pytest.mark.parametrize(
    ("text", "code", "state"),
    [
        ("https://x.example/cb?code=c&state=s", "c", "s"),
        ("https://x.example/cb#code=c&state=s", "c", "s"),
        ("http://localhost:1/cb?state=s&code=c%2F1", "c/1", "s"),
        ("code=c&state=s", "c", "s"),
        ("?code=c", "c", None),
        (" c#s\n", "c", "s"),
        ("c", "c", None),
        ("abc=", "abc=", None),
        ("https://x.example/cb?other=1", "", None),
    ],
)
def test_what_may_come_back(text: str, code: str, state: str | None) -> None:
    given = parse_authorization_input(text)
    assert (given.code, given.state) == (code, state)


def test_what_came_back_is_not_shown() -> None:
    assert "secret" not in repr(AuthorizationInput("secret-code", "secret-state"))


# -- device --------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.18")
async def test_a_device_waits_longer_when_it_is_told_to(
    oauth: FakeOAuth, signing: Signing, sleeps: Sleeps
) -> None:
    oauth.device_answers.extend(
        ["authorization_pending", "slow_down", "authorization_pending", "slow_down"]
    )
    client = signing()
    device = await client.start_device()
    assert (device.user_code, device.verification_uri) == (
        "ABCD-EFGH",
        "https://fake.example/device",
    )
    assert "device-secret" not in repr(device)
    assert (await client.poll_device(device)).access_token == "access-1"
    assert sleeps.seconds == [2, 2, 7, 7, 12]


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.18")
@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (["access_denied"], "denied"),
        (["expired_token"], "expired"),
        (["authorization_pending"] * 400, "expired"),
        (["server_on_fire"], "refused"),
    ],
)
async def test_a_device_gives_up(
    answers: list[str], reason: str, oauth: FakeOAuth, signing: Signing, clock: Clock
) -> None:
    oauth.device_answers.extend(answers)
    client = signing()
    device = await client.start_device()
    with pytest.raises(OAuthError) as caught:
        await client.poll_device(device)
    assert caught.value.reason == reason
    assert clock.ms <= NOW_MS + 602_000


# -- renewing ------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_token_that_lasts_is_used_as_it_is(oauth: FakeOAuth, signing: Signing) -> None:
    secrets, store = OAuthSecrets({"fake": signing()}), Store()
    for ends in (NOW_MS + 60_001, None):
        assert await secrets.resolve_secret("s", stored("a", "r", ends), store) == "a"
    assert (oauth.asked, store.written) == ([], [])


@pytest.mark.anyio
async def test_a_token_is_renewed_within_the_margin(oauth: FakeOAuth, signing: Signing) -> None:
    oauth.grant_refresh("r")
    secrets, store = OAuthSecrets({"fake": signing(expiry_margin_ms=300_000)}), Store()
    value = stored("a", "r", NOW_MS + 299_999)
    assert await secrets.resolve_secret("s", value, store) == "access-1"
    ((name, text),) = store.written
    assert name == "s"
    assert json.loads(text) == {
        "account": "a",
        "type": "fake_oauth",
        "access_token": "access-1",
        "refresh_token": "refresh-1",
        "expires_at_ms": NOW_MS + 3_600_000,
        "created_at_ms": NOW_MS - 5,
        "updated_at_ms": NOW_MS,
    }


@pytest.mark.anyio
async def test_a_provider_that_does_not_rotate_keeps_its_refresh_token(
    oauth: FakeOAuth, signing: Signing
) -> None:
    oauth.rotates = False
    oauth.grant_refresh("r")
    store = Store()
    await OAuthSecrets({"fake": signing()}).resolve_secret("s", stored("a", "r", 1), store)
    assert json.loads(store.written[0][1])["refresh_token"] == "r"


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.18")
async def test_ten_callers_renew_once(oauth: FakeOAuth, signing: Signing) -> None:
    """The provider takes the old refresh token a single time."""
    oauth.grant_refresh("r")
    secrets, store = OAuthSecrets({"fake": signing()}), Store()
    value, keys = stored("a", "r", NOW_MS), []

    async def caller() -> None:
        keys.append(await secrets.resolve_secret("s", value, store))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(caller)
    assert keys == ["access-1"] * 10
    assert (len(oauth.asked), len(store.written)) == (1, 1)
    # The text from before is good for another renewal, and so is what was stored.
    assert await secrets.resolve_secret("s", value, store) == "access-1"
    assert await secrets.resolve_secret("s", store.written[0][1], store) == "access-1"
    assert len(oauth.asked) == 1


@pytest.mark.anyio
async def test_a_stale_text_is_renewed_with_the_newest_refresh_token(
    oauth: FakeOAuth, signing: Signing, clock: Clock
) -> None:
    oauth.grant_refresh("r")
    secrets, store = OAuthSecrets({"fake": signing()}), Store()
    value = stored("a", "r", NOW_MS)
    await secrets.resolve_secret("s", value, store)
    clock.ms += 3_600_000
    assert await secrets.resolve_secret("s", value, store) == "access-2"
    assert oauth.asked[1]["refresh_token"] == "refresh-1"


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.18")
async def test_a_renewal_that_fails_keeps_a_token_that_is_still_valid(
    oauth: FakeOAuth, signing: Signing, caplog: pytest.LogCaptureFixture
) -> None:
    oauth.refuse = "temporarily_unavailable"
    secrets, store = OAuthSecrets({"fake": signing()}), Store()
    value = stored("a", "r", NOW_MS + 1)
    assert await secrets.resolve_secret("s", value, store) == "a"
    assert [record.message for record in caplog.records] == ["oauth.refresh_failed"]
    assert store.written == []
    with pytest.raises(OAuthError, match="temporarily_unavailable"):
        await secrets.resolve_secret("s", stored("access-0", "refresh-0", NOW_MS), store)
    with pytest.raises(OAuthError, match="sign in again"):
        await secrets.resolve_secret("s", stored("a", None, NOW_MS), store)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "value",
    [
        "sk-plain",
        "",
        "{",
        "[]",
        '{"type": "service_account"}',
        '{"type": "fake_oauth"}',
        '{"a": 1}',
    ],
)
async def test_what_is_no_payload_is_left_to_others(value: str, signing: Signing) -> None:
    assert await OAuthSecrets({"fake": signing()}).resolve_secret("s", value, Store()) is None


@pytest.mark.anyio
async def test_a_payload_of_nobody(signing: Signing) -> None:
    with pytest.raises(OAuthError, match="the secret s") as caught:
        await OAuthSecrets({}).resolve_secret("s", stored("a", "r", 1), Store())
    assert caught.value.reason == "unknown_provider"


@pytest.mark.anyio
async def test_a_provider_that_cannot_be_reached(signing: Signing) -> None:
    client = signing(token_url="http://127.0.0.1:1/token")
    with pytest.raises(OAuthError, match="connection refused") as caught:
        await client.refresh(OAuthPayload("fake_oauth", "a", "r"))
    assert caught.value.reason == "unreachable"


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.18")
async def test_tokens_are_in_no_log_no_repr_and_no_error(
    oauth: FakeOAuth, signing: Signing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    canary, client, store = "canary-token", signing(), Store()
    oauth.refuse = f"invalid {canary} or {canary}-access"
    secrets = OAuthSecrets({"fake": client})
    seen: list[str] = [repr(client), repr(client.provider), repr(client.authorize_url())]
    for ends in (NOW_MS + 1, NOW_MS - 1):
        value = stored(f"{canary}-access", canary, ends)
        seen.append(repr(OAuthPayload.from_secret(value)))
        try:
            await secrets.resolve_secret("s", value, store)
        except OAuthError as exc:
            seen += [str(exc), repr(exc), repr(exc.info())]
    seen += [repr(vars(record)) for record in caplog.records]
    assert len(seen) > 7
    assert [text for text in seen if canary in text] == []


def test_the_providers_that_are_there() -> None:
    config = OAUTH_PROVIDERS["openrouter"]
    request = OAuthClient(config, Transport(env={})).authorize_url("http://127.0.0.1:1/cb")
    query = parse_qs(urlsplit(request.url).query)
    assert query["callback_url"] == ["http://127.0.0.1:1/cb"]
    assert {"state", "client_id", "redirect_uri", "scope"}.isdisjoint(query)


@pytest.mark.anyio
async def test_a_provider_that_gives_keys(clock: Clock) -> None:
    asked: list[object] = []

    def keys(request: object) -> object:
        asked.append(getattr(request, "body", None))
        return {"key": "sk-or-1", "user_id": "u"}

    async with FakeProviderServer(probes={"/keys": keys}) as server:
        transport = Transport(env={})
        config = FakeOAuth().config(
            server.origin,
            client_id="",
            token_url=f"{server.origin}/keys",
            body="json",
            token_field="key",
            gives_keys=True,
            returns_state=False,
        )
        client = OAuthClient(config, transport, clock_ms=clock)
        request = client.authorize_url()
        payload = await client.exchange_code(request, "http://127.0.0.1:1/cb?code=c")
        await transport.aclose()
    assert asked == [
        {"code": "c", "code_verifier": request.verifier, "code_challenge_method": "S256"}
    ]
    assert (payload.access_token, payload.expires_at_ms) == ("sk-or-1", None)
