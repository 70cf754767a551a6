"""Signing in with OAuth 2: authorization code with PKCE, device flow, refresh.

Everything that differs between providers is data (`OAuthProviderConfig`). What comes out is a text
that its owner stores like any other secret; tokens are in no repr, no log and no error.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio

from lemon_ai.error_parsing import provider_code, provider_text
from lemon_ai.errors import AIError, redact
from lemon_ai.text import dump_json
from lemon_ai.transport import Transport, TransportFailure
from lemon_ai.types import ErrorInfo, now_ms

VERIFIER_BYTES: Final = 32
STATE_BYTES: Final = 16
REDIRECT_TIMEOUT_MS: Final = 120_000
REQUEST_TIMEOUT_S: Final = 30.0
DEFAULT_MARGIN_MS: Final = 60_000
MIN_POLL_MS: Final = 1_000
DEFAULT_POLL_MS: Final = 5_000
SLOW_DOWN_MS: Final = 5_000
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
# What a payload says by itself; anything else in it is the provider's.
_OWN_KEYS: Final = (
    "type",
    "access_token",
    "refresh_token",
    "expires_at_ms",
    "created_at_ms",
    "updated_at_ms",
)


class OAuthError(AIError):
    """Signing in or renewing a token failed; `reason` is the stable word for how.

    `state_mismatch`, `missing_code`, `denied`, `expired`, `timeout`, `refused`, `unreachable`,
    `no_refresh_token`, `unknown_provider`.
    """

    code = "oauth_failed"

    def __init__(self, reason: str, provider: str, message: str) -> None:
        super().__init__(f"{provider}: {message}")
        self.reason, self.provider = reason, provider

    def info(self) -> ErrorInfo:
        """As the error of a call."""
        return ErrorInfo(category="auth", code=f"oauth_{self.reason}", message=str(self))


@dataclass(frozen=True, slots=True)
class OAuthProviderConfig:
    """One provider. The client id is one that the provider gave to Lemon or to its user.

    `body` is how the token endpoint takes its fields. `parameters` go into the authorization URL,
    `token_parameters` into every question to the token endpoint. `redirect_parameter` and
    `token_field` are for providers with words of their own; `gives_keys` for one whose endpoint is
    no token endpoint and takes only the code and its verifier. `kept_fields` of an answer stay in
    the payload. `expiry_margin_ms` before its end a token is renewed.
    """

    id: str
    token_url: str
    authorize_url: str = ""
    device_url: str = ""
    client_id: str = ""
    scopes: tuple[str, ...] = ()
    redirect_uri: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    token_parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Literal["form", "json"] = "form"
    redirect_parameter: str = "redirect_uri"
    token_field: str = "access_token"
    returns_state: bool = True
    gives_keys: bool = False
    kept_fields: tuple[str, ...] = ()
    expiry_margin_ms: int = DEFAULT_MARGIN_MS

    @property
    def payload_type(self) -> str:
        """The tag of this provider's stored payloads."""
        return f"{self.id}_oauth"


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """A sign-in that has begun: the user opens `url`, the rest stays here until the code comes."""

    url: str
    redirect_uri: str
    state: str = field(repr=False)
    verifier: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AuthorizationInput:
    """What came back: a code, and the state where it came along. `is_redirect`: it is what the
    provider sent the browser to, not a code that somebody typed."""

    code: str = field(repr=False)
    state: str | None = field(default=None, repr=False)
    error: str | None = None
    is_redirect: bool = False


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The user types `user_code` at `verification_uri` until `expires_at_ms`."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    interval_ms: int
    expires_at_ms: int
    device_code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthPayload:
    """What is stored. `expires_at_ms` None: the token does not end by itself."""

    type: str
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    expires_at_ms: int | None = None
    created_at_ms: int = 0
    updated_at_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_secret(self) -> str:
        """The text to store."""
        own = {name: getattr(self, name) for name in _OWN_KEYS}
        return json.dumps({**self.extra, **own})

    @classmethod
    def from_secret(cls, value: str) -> OAuthPayload | None:
        """The payload in a stored text; None for anything else, such as a plain key."""
        if not value.lstrip().startswith("{"):
            return None
        try:
            document = json.loads(value)
        except ValueError:
            return None
        kind, token = document.get("type"), document.get("access_token")
        if not (isinstance(kind, str) and kind.endswith("_oauth") and isinstance(token, str)):
            return None
        extra = {name: item for name, item in document.items() if name not in _OWN_KEYS}
        renewing = document.get("refresh_token")
        times = (document.get(name) for name in _OWN_KEYS[3:])
        ends, created, updated = (t if isinstance(t, int) else None for t in times)
        return cls(
            type=kind,
            access_token=token,
            refresh_token=renewing if isinstance(renewing, str) and renewing else None,
            expires_at_ms=ends,
            created_at_ms=created or 0,
            updated_at_ms=updated or 0,
            extra=extra,
        )

    def is_within(self, margin_ms: int, at_ms: int) -> bool:
        """Whether the token ends in so many milliseconds, or has ended."""
        return self.expires_at_ms is not None and at_ms >= self.expires_at_ms - margin_ms


AwaitRedirect = Callable[[AuthorizationRequest], Awaitable[str]]
"""Shows the URL to the user and returns what came back, in any form that
`parse_authorization_input` reads."""


def parse_authorization_input(text: str) -> AuthorizationInput:
    """The code in what a user pasted: the whole URL, its query, `code#state`, or the bare code.

    `code` is empty when there is none.
    """
    text = text.strip()
    parts = urlsplit(text)
    query = parts.query or parts.fragment if parts.scheme and parts.netloc else text.lstrip("?#&")
    fields = parse_qs(query) if "=" in query else {}
    if "code" in fields or "error" in fields or "state" in fields:
        first = {name: values[0] for name, values in fields.items()}
        problem = first.get("error_description") or first.get("error")
        return AuthorizationInput(first.get("code", ""), first.get("state"), problem, True)
    if parts.scheme and parts.netloc:
        return AuthorizationInput("", is_redirect=True)
    code, _, state = text.partition("#")
    return AuthorizationInput(code, state or None)


def challenge_of(verifier: str) -> str:
    """The S256 challenge of a PKCE verifier. Source: RFC 7636, section 4.2."""
    return _base64url(hashlib.sha256(verifier.encode()).digest())


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class OAuthClient:
    """Signs in at one provider. `sleep`, clock and randomness are passed in for tests."""

    def __init__(
        self,
        provider: OAuthProviderConfig,
        transport: Transport,
        *,
        clock_ms: Callable[[], int] = now_ms,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.provider = provider
        self._transport, self._clock_ms = transport, clock_ms
        self._sleep, self._random_bytes = sleep, random_bytes

    # -- authorization code ------------------------------------------------------------------

    def authorize_url(self, redirect_uri: str | None = None) -> AuthorizationRequest:
        """Begin a sign-in in the browser."""
        provider = self.provider
        verifier = _base64url(self._random_bytes(VERIFIER_BYTES))
        state = _base64url(self._random_bytes(STATE_BYTES))
        redirect_uri = redirect_uri or provider.redirect_uri
        fields = {
            "response_type": "code",
            "client_id": provider.client_id,
            provider.redirect_parameter: redirect_uri,
            "scope": " ".join(provider.scopes),
            "state": state if provider.returns_state else "",
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
            **provider.parameters,
        }
        query = urlencode({name: value for name, value in fields.items() if value})
        joint = "&" if "?" in provider.authorize_url else "?"
        return AuthorizationRequest(
            f"{provider.authorize_url}{joint}{query}", redirect_uri, state, verifier
        )

    async def login(
        self,
        await_redirect: AwaitRedirect,
        *,
        redirect_uri: str | None = None,
        timeout_ms: int = REDIRECT_TIMEOUT_MS,
    ) -> OAuthPayload:
        """The whole sign-in: `await_redirect` has the user open the URL. Raises OAuthError."""
        request = self.authorize_url(redirect_uri)
        try:
            with anyio.fail_after(timeout_ms / 1000):
                answer = await await_redirect(request)
        except TimeoutError as exc:
            raise self._error("timeout", "nobody finished the sign-in in time") from exc
        return await self.exchange_code(request, answer)

    async def exchange_code(self, request: AuthorizationRequest, answer: str) -> OAuthPayload:
        """The payload for what came back; a state that is not the request's is refused.

        Raises OAuthError.
        """
        given = parse_authorization_input(answer)
        if given.error:
            raise self._error("denied", f"the sign-in was refused: {given.error}")
        if not given.code:
            raise self._error("missing_code", "there is no code in what came back")
        self._check_state(request, given)
        fields = {"code": given.code, "code_verifier": request.verifier}
        if self.provider.gives_keys:
            fields["code_challenge_method"] = "S256"
        else:
            fields |= {"grant_type": "authorization_code", "redirect_uri": request.redirect_uri}
        document = await self._ask_token(fields, given.code, request.verifier)
        return self._payload(document)

    def _check_state(self, request: AuthorizationRequest, given: AuthorizationInput) -> None:
        if given.state is None and not (given.is_redirect and self.provider.returns_state):
            return  # a code that the user typed, or a provider that knows no state
        if not hmac.compare_digest((given.state or "").encode(), request.state.encode()):
            raise self._error("state_mismatch", "what came back belongs to another sign-in")

    # -- device ------------------------------------------------------------------------------

    async def start_device(self) -> DeviceCode:
        """Begin a sign-in at another device. Raises OAuthError."""
        fields = {
            "client_id": self.provider.client_id,
            "scope": " ".join(self.provider.scopes),
        }
        status, document = await self._post(self.provider.device_url, fields)
        code, user_code = document.get("device_code"), document.get("user_code")
        uri = document.get("verification_uri") or document.get("verification_url")
        if status != 200 or not (code and user_code and uri):
            raise self._refused(status, document)
        return DeviceCode(
            user_code=str(user_code),
            verification_uri=str(uri),
            verification_uri_complete=document.get("verification_uri_complete"),
            interval_ms=max(MIN_POLL_MS, _milliseconds(document.get("interval"), DEFAULT_POLL_MS)),
            expires_at_ms=self._clock_ms() + _milliseconds(document.get("expires_in"), 900_000),
            device_code=str(code),
        )

    async def poll_device(self, device: DeviceCode) -> OAuthPayload:
        """Wait until the user has signed in there. Raises OAuthError."""
        interval_ms = device.interval_ms
        fields = {"grant_type": DEVICE_GRANT, "device_code": device.device_code}
        while True:
            await self._sleep(interval_ms / 1000)
            if self._clock_ms() >= device.expires_at_ms:
                raise self._error("expired", "the code has run out: begin again")
            status, document = await self._post(self.provider.token_url, self._fields(fields))
            if status == 200 and document.get(self.provider.token_field):
                return self._payload(document)
            match provider_code(document) or document.get("error"):
                case "authorization_pending":
                    pass
                case "slow_down":
                    interval_ms += SLOW_DOWN_MS
                case "access_denied":
                    raise self._error("denied", "the sign-in was refused")
                case "expired_token":
                    raise self._error("expired", "the code has run out: begin again")
                case _:
                    raise self._refused(status, document, device.device_code)

    # -- refresh -----------------------------------------------------------------------------

    def needs_refresh(self, payload: OAuthPayload) -> bool:
        """Whether the token ends within the provider's margin."""
        return payload.is_within(self.provider.expiry_margin_ms, self._clock_ms())

    def is_expired(self, payload: OAuthPayload) -> bool:
        """Whether the token has ended."""
        return payload.is_within(0, self._clock_ms())

    async def refresh(self, payload: OAuthPayload) -> OAuthPayload:
        """The payload with a new token. Raises OAuthError."""
        if not payload.refresh_token:
            raise self._error("no_refresh_token", "the token cannot be renewed: sign in again")
        fields = {"grant_type": "refresh_token", "refresh_token": payload.refresh_token}
        document = await self._ask_token(fields, payload.refresh_token, payload.access_token)
        renewed = self._payload(document)
        return replace(
            renewed,
            # A provider that does not rotate leaves it out.
            refresh_token=renewed.refresh_token or payload.refresh_token,
            created_at_ms=payload.created_at_ms,
            extra={**payload.extra, **renewed.extra},
        )

    # -- the token endpoint ------------------------------------------------------------------

    async def _ask_token(self, fields: Mapping[str, str], *sent: str) -> Mapping[str, Any]:
        status, document = await self._post(self.provider.token_url, self._fields(fields))
        if status != 200 or not isinstance(document.get(self.provider.token_field), str):
            raise self._refused(status, document, *sent)
        return document

    def _fields(self, fields: Mapping[str, str]) -> Mapping[str, str]:
        every = {"client_id": self.provider.client_id, **fields, **self.provider.token_parameters}
        return {name: value for name, value in every.items() if value}

    async def _post(self, url: str, fields: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        is_form = self.provider.body == "form"
        body = urlencode(fields).encode() if is_form else dump_json(dict(fields))
        kind = "application/x-www-form-urlencoded" if is_form else "application/json"
        headers = {"content-type": kind, "accept": "application/json"}
        try:
            with anyio.fail_after(REQUEST_TIMEOUT_S):
                status, document = await self._transport.post_json(url, body, headers)
        except TimeoutError as exc:
            raise self._error("unreachable", "the provider did not answer in time") from exc
        except TransportFailure as exc:
            raise self._error("unreachable", exc.error.message) from exc
        return status, document if isinstance(document, dict) else {}

    def _payload(self, document: Mapping[str, Any]) -> OAuthPayload:
        at_ms = self._clock_ms()
        lifetime = document.get("expires_in")
        ends = None if lifetime is None else at_ms + _milliseconds(lifetime, 0)
        refresh_token = document.get("refresh_token")
        return OAuthPayload(
            type=self.provider.payload_type,
            access_token=str(document[self.provider.token_field]),
            refresh_token=refresh_token if isinstance(refresh_token, str) else None,
            expires_at_ms=ends,
            created_at_ms=at_ms,
            updated_at_ms=at_ms,
            extra={n: document[n] for n in self.provider.kept_fields if n in document},
        )

    def _refused(self, status: int, document: Mapping[str, Any], *sent: str) -> OAuthError:
        answered = (document.get("access_token"), document.get("refresh_token"))
        code = document.get("error") if isinstance(document.get("error"), str) else None
        words = ": ".join(dict.fromkeys(filter(None, (code, provider_text(document)))))
        words = redact(words, *sent, *(a for a in answered if isinstance(a, str)))
        detail = f"HTTP {status}" + (f": {words}" if words else "")
        return self._error("refused", f"the provider refused ({detail})")

    def _error(self, reason: str, message: str) -> OAuthError:
        return OAuthError(reason, self.provider.id, message)


def _milliseconds(seconds: object, default_ms: int) -> int:
    """Seconds of an answer, a number or its text."""
    if isinstance(seconds, str) and seconds.isdigit():
        seconds = int(seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        return default_ms
    return round(seconds * 1000)
