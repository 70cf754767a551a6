"""Keys out of stored OAuth payloads, renewed in time and only once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from lemon_ai.oauth import OAuthClient, OAuthError, OAuthPayload

log = logging.getLogger(__name__)

Persist = Callable[[str, str], Awaitable[None]]
"""Stores the new text of a secret: name, value."""

_SUFFIX: Final = "_oauth"


@dataclass(slots=True)
class _Renewal:
    """The lock of one secret, and what its last renewal made of which text."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    old: str | None = field(default=None, repr=False)
    new: OAuthPayload | None = None


class OAuthSecrets:
    """`clients` by provider id. One of these serves all callers of a process that share secrets."""

    def __init__(self, clients: Mapping[str, OAuthClient]) -> None:
        self._clients = clients
        self._renewals: dict[str, _Renewal] = {}

    async def resolve_secret(self, name: str, value: str, persist: Persist) -> str | None:
        """The key in the secret `name`, whose stored text is `value`; None when that is no OAuth
        payload.

        A token that is about to end is renewed, by one caller for all who come with the same text,
        and `persist(name, text)` stores the result. When renewing fails, a token that is still
        valid is used on. Raises OAuthError.
        """
        payload = OAuthPayload.from_secret(value)
        if payload is None:
            return None
        client = self._clients.get(payload.type.removesuffix(_SUFFIX))
        if client is None:
            kind = payload.type.removesuffix(_SUFFIX)
            raise OAuthError("unknown_provider", kind, f"nobody can renew the secret {name}")
        if not client.needs_refresh(payload):
            return payload.access_token
        renewal = self._renewals.setdefault(name, _Renewal())
        async with renewal.lock:  # held over the request: the others wait for its answer
            return await self._renewed(renewal, client, name, value, payload, persist)

    async def _renewed(
        self,
        renewal: _Renewal,
        client: OAuthClient,
        name: str,
        value: str,
        payload: OAuthPayload,
        persist: Persist,
    ) -> str:
        if renewal.old == value and renewal.new is not None:
            if not client.needs_refresh(renewal.new):
                return renewal.new.access_token
            payload = renewal.new  # the caller still holds the text from before it
        try:
            fresh = await client.refresh(payload)
        except OAuthError as exc:
            if client.is_expired(payload):
                raise
            log.warning("oauth.refresh_failed", extra={"secret": name, "reason": exc.reason})
            return payload.access_token
        # Kept before it is stored: a provider that rotates takes the old token only once.
        renewal.old, renewal.new = value, fresh
        await persist(name, fresh.to_secret())
        return fresh.access_token
