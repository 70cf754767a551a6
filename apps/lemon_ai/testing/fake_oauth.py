"""A fake OAuth provider, as probes of a FakeProviderServer.

    oauth = FakeOAuth()
    async with FakeProviderServer(probes=oauth.probes) as server:
        config = oauth.config(server.origin)
        redirect = oauth.sign_in(request.url)       # what the browser would be sent to

It checks what a real one checks: the challenge against the verifier, each code and each refresh
token once.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from aiohttp import web

from lemon_ai.oauth import OAuthProviderConfig
from lemon_ai.testing.fake_provider_server import Probe, RecordedRequest
from lemon_ai.text import dump_json


class FakeOAuth:
    """`device_answers` are the errors that polling gets before the token; `refuse` is the error
    that every question for a token gets."""

    def __init__(self, *, expires_in: int | None = 3_600, rotates: bool = True) -> None:
        self.expires_in, self.rotates = expires_in, rotates
        self.device_answers: deque[str] = deque()
        self.refuse: str | None = None
        self.asked: list[Mapping[str, Any]] = []
        self.issued: list[str] = []
        self._challenges: dict[str, str] = {}
        self._refresh_tokens: set[str] = set()

    @property
    def probes(self) -> Mapping[str, Probe]:
        """The endpoints."""
        return {"/oauth/token": self._token, "/oauth/device": self._device}

    def config(self, origin: str, **changes: Any) -> OAuthProviderConfig:
        """What a client of it is configured with."""
        fields = {
            "id": "fake",
            "client_id": "lemon-test",
            "authorize_url": f"{origin}/oauth/authorize",
            "token_url": f"{origin}/oauth/token",
            "device_url": f"{origin}/oauth/device",
            "scopes": ("models", "offline_access"),
            "redirect_uri": "http://127.0.0.1:1455/callback",
            **changes,
        }
        return OAuthProviderConfig(**fields)

    def sign_in(self, url: str) -> str:
        """The user says yes at this URL: where the browser goes then."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self._challenges) + 1}"
        self._challenges[code] = query["code_challenge"]
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def grant_refresh(self, token: str) -> None:
        """Have this refresh token accepted."""
        self._refresh_tokens.add(token)

    # -- endpoints ---------------------------------------------------------------------------

    def _token(self, request: RecordedRequest) -> web.Response:
        self.asked.append(request.body)
        if self.refuse is not None:
            return _error(self.refuse)
        grants: Mapping[str, Callable[[Mapping[str, Any]], web.Response]] = {
            "authorization_code": self._by_code,
            "refresh_token": self._by_refresh,
            "urn:ietf:params:oauth:grant-type:device_code": self._by_device,
        }
        grant = grants.get(str(request.body.get("grant_type")))
        return _error("unsupported_grant_type") if grant is None else grant(request.body)

    def _by_code(self, body: Mapping[str, Any]) -> web.Response:
        challenge = self._challenges.pop(str(body.get("code")), None)
        digest = hashlib.sha256(str(body.get("code_verifier")).encode()).digest()
        if challenge is None or challenge != base64.urlsafe_b64encode(digest).decode().rstrip("="):
            return _error("invalid_grant")
        return self._issue()

    def _by_refresh(self, body: Mapping[str, Any]) -> web.Response:
        token = str(body.get("refresh_token"))
        if token not in self._refresh_tokens:
            return _error("invalid_grant")
        if self.rotates:
            self._refresh_tokens.remove(token)
        return self._issue(renewing=not self.rotates)

    def _by_device(self, body: Mapping[str, Any]) -> web.Response:
        if body.get("device_code") != "device-secret":
            return _error("invalid_grant")
        if self.device_answers:
            return _error(self.device_answers.popleft())
        return self._issue()

    def _issue(self, *, renewing: bool = False) -> web.Response:
        number = len(self.issued) + 1
        self.issued.append(f"access-{number}")
        document: dict[str, Any] = {"access_token": f"access-{number}", "token_type": "Bearer"}
        if self.expires_in is not None:
            document["expires_in"] = self.expires_in
        if not renewing:
            document["refresh_token"] = f"refresh-{number}"
            self.grant_refresh(f"refresh-{number}")
        return _json(document)

    def _device(self, request: RecordedRequest) -> web.Response:
        assert request.body["client_id"] == "lemon-test"
        return _json(
            {
                "device_code": "device-secret",
                "user_code": "ABCD-EFGH",
                "verification_uri": "https://fake.example/device",
                "interval": 2,
                "expires_in": 600,
            }
        )


def _json(document: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=dump_json(document), content_type="application/json")


def _error(code: str) -> web.Response:
    return _json({"error": code, "error_description": f"because of {code}"}, 400)
