"""Access tokens for Vertex: given, from a service account, or from what the machine is logged in
with.

google-auth is imported and asked in a worker thread: it takes a while to load, and its requests
block. A token is kept until a minute before its end. Credentials of the environment go to Google's
hosts, or to the base URL that the environment sets, and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
from pydantic import SecretStr

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.process_env import is_process_environment
from lemon_ai.compat import host_of
from lemon_ai.credentials import may_have_environment, options_for
from lemon_ai.errors import AIError
from lemon_ai.types import ErrorInfo, now_ms

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
JSON_VARIABLE: Final = "GOOGLE_APPLICATION_CREDENTIALS_JSON"
FILE_VARIABLE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
MARGIN_MS: Final = 60_000
_KEPT = 32
_PREFIXES = ("GOOGLE_", "CLOUDSDK_", "GCE_", "NO_GCE_")


class TokenError(AIError):
    """There is no token; `error` says why and what to set."""

    code = "missing_credentials"

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error

    def info(self) -> ErrorInfo:
        """The same as data."""
        return self.error


@dataclass(frozen=True, slots=True)
class Token:
    """`quota_project` is billed for the call where the credentials name one."""

    value: str = field(repr=False)
    expires_at_ms: int | None = None
    quota_project: str | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a token comes from: the JSON of an account, a file of one, or the machine's login."""

    account: str | None = field(default=None, repr=False)
    path: str | None = None

    @property
    def key(self) -> str:
        whole = self.account or f"file {self.path}"
        return hashlib.sha256(whole.encode()).hexdigest()


class VertexTokens:
    """The tokens of one adapter."""

    def __init__(self) -> None:
        self._tokens: dict[str, Token] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def get(self, request: AdapterRequest) -> Token:
        """The token for this call. Raises TokenError."""
        given = _given(request, "access_token") or request.api_key
        if given:
            return Token(given)
        source = _source(request)
        # Held while a token is fetched: calls that begin together need it once.
        async with self._locks.setdefault(source.key, anyio.Lock()):
            token = self._tokens.get(source.key)
            if token is None or not _is_fresh(token):
                token = await anyio.to_thread.run_sync(_fetch, source, abandon_on_cancel=True)
                self._keep(source.key, token)
            return token

    def _keep(self, key: str, token: Token) -> None:
        if len(self._tokens) >= _KEPT:
            oldest = next(iter(self._tokens))
            del self._tokens[oldest]
            self._locks.pop(oldest, None)
        self._tokens[key] = token


def _is_fresh(token: Token) -> bool:
    return token.expires_at_ms is None or now_ms() < token.expires_at_ms - MARGIN_MS


def _given(request: AdapterRequest, name: str) -> str | None:
    value = getattr(request.options, name)
    value = value or options_for(request.model, request.options).get(name)
    if isinstance(value, SecretStr):
        return value.get_secret_value() or None
    return json.dumps(value) if isinstance(value, Mapping) else value


def _source(request: AdapterRequest) -> _Source:
    """The first that is there: the caller's account, the environment's, its file, the login."""
    if account := _given(request, "service_account_json"):
        return _Source(account=account)
    env = request.env
    if not _may_have_environment(request.base_url, env):
        raise TokenError(
            _missing(f"for {request.base_url}: pass access_token or service_account_json")
        )
    if account := env.get(JSON_VARIABLE):
        return _Source(account=account)
    if path := env.get(FILE_VARIABLE):
        return _Source(path=path)
    if not is_process_environment(env, *_PREFIXES):
        raise TokenError(_missing(f"for Vertex: set {FILE_VARIABLE} or pass access_token"))
    return _Source()


def _may_have_environment(base_url: str, env: Mapping[str, str]) -> bool:
    host = host_of(base_url)
    at_google = host == "aiplatform.googleapis.com" or host.endswith(
        ("-aiplatform.googleapis.com", ".rep.googleapis.com")
    )
    is_home = at_google and base_url.startswith("https://")
    return may_have_environment("google_vertex", base_url, env, is_home=is_home)


# -- in a worker thread --------------------------------------------------------------------------


def _fetch(source: _Source) -> Token:
    try:
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
        from google.auth.transport.requests import Request
    except ImportError as exc:
        raise TokenError(
            _missing("for Vertex: install google-auth and requests, or pass access_token")
        ) from exc
    try:
        credentials = _credentials(source)
        if not credentials.valid:  # a login may bring a token
            credentials.refresh(Request())  # type: ignore[no-untyped-call]  # not annotated there
    except DefaultCredentialsError as exc:
        raise TokenError(
            _missing(f"for Vertex: set {FILE_VARIABLE}, or log in with gcloud ({exc})")
        ) from exc
    except TransportError as exc:
        raise TokenError(_failed(exc, retryable=True)) from exc
    except (GoogleAuthError, ValueError, OSError) as exc:
        raise TokenError(_failed(exc, retryable=bool(getattr(exc, "retryable", False)))) from exc
    expiry = credentials.expiry  # a naive time in UTC
    return Token(
        value=str(credentials.token),
        expires_at_ms=None if expiry is None else timegm(expiry.utctimetuple()) * 1000,
        quota_project=getattr(credentials, "quota_project_id", None),
    )


def _credentials(source: _Source) -> Credentials:
    if source.account is None and source.path is None:
        return _default()
    if source.account is not None:
        text = source.account
    else:
        assert source.path is not None
        with open(source.path, encoding="utf-8") as file:
            text = file.read()
    document = json.loads(text)
    return _of_document(document if isinstance(document, dict) else {})


def _of_document(document: Mapping[str, Any]) -> Credentials:
    from google.auth import identity_pool
    from google.oauth2 import credentials, service_account

    kind = document.get("type")
    found: Any
    match kind:
        case "service_account":
            load: Any = service_account.Credentials.from_service_account_info
            found = load(document, scopes=[SCOPE])
        case "authorized_user":
            load = credentials.Credentials.from_authorized_user_info
            found = load(document, scopes=[SCOPE])
        case "external_account":
            load = identity_pool.Credentials.from_info
            found = load(document, scopes=[SCOPE])
        case _:
            raise ValueError(f"credentials of the type {kind!r} are not known")
    return found  # type: ignore[no-any-return]  # not annotated there


def _default() -> Credentials:
    import google.auth

    load: Any = google.auth.default
    found, _project = load(scopes=[SCOPE])
    return found  # type: ignore[no-any-return]  # not annotated there


def _missing(what: str) -> ErrorInfo:
    return ErrorInfo(
        category="auth",
        code=TokenError.code,
        message=f"no Google Cloud credentials {what}",
    )


def _failed(exc: Exception, *, retryable: bool) -> ErrorInfo:
    # The second argument of a RefreshError is the whole answer of the token endpoint.
    words = str(exc.args[0]) if exc.args else type(exc).__name__
    return ErrorInfo(
        category="transient" if retryable else "auth",
        code="token_refused",
        message=f"no access token for Vertex: {' '.join(words.split())}",
        retryable=retryable,
    )
