"""Signing in with the browser: the page is opened, and the answer caught or pasted."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from lemon_ai.oauth import AuthorizationRequest, OAuthClient, OAuthProviderConfig
from lemon_ai.transport import Transport
from lemon_cli.ui import Ui
from lemon_core.clock import SystemClock
from lemon_core.oauth_listener import OAuthListenerError, oauth_listener

CALLBACK_TIMEOUT_MS: Final = 120_000
# For providers that take any address on this machine.
CALLBACK_URI: Final = "http://localhost:3000/callback"


def sign_in(
    ui: Ui,
    provider: OAuthProviderConfig,
    environ: Mapping[str, str],
    *,
    open_url: Callable[[str], object] = webbrowser.open,
    timeout_ms: int = CALLBACK_TIMEOUT_MS,
) -> str:
    """The payload to store. Raises `OAuthError` and `Cancelled`."""
    client = OAuthClient(provider, Transport(env=environ))
    request = client.authorize_url(provider.redirect_uri or CALLBACK_URI)
    ui.say("Sign in on this page; it should open by itself:")
    ui.say(f"  {request.url}")
    open_url(request.url)
    answer = anyio.run(_caught, ui, request.redirect_uri, timeout_ms)
    if answer is None:
        ui.say("Copy the address that the browser ended at, or the code that it shows.")
        answer = ui.ask_hidden("Address or code")
    ui.say("Finishing the sign-in …")
    return anyio.run(_exchanged, provider, environ, request, answer)


async def _caught(ui: Ui, redirect_uri: str, timeout_ms: int) -> str | None:
    """The query that the browser came back with; None when it is to be pasted."""
    from urllib.parse import urlencode

    try:
        async with oauth_listener(redirect_uri, SystemClock()) as listener:
            ui.say("Waiting for the browser (Enter: paste the answer by hand) …")
            found: dict[str, str] | None = None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_enter, tasks.cancel_scope)
                found = await listener.wait(timeout_ms)
                tasks.cancel_scope.cancel()
    except OAuthListenerError as exc:
        ui.say(f"The answer cannot be caught here: {exc}.")
        return None
    return None if found is None else urlencode(found)


async def _until_enter(scope: anyio.CancelScope) -> None:
    await anyio.wait_readable(sys.stdin.fileno())
    sys.stdin.readline()
    scope.cancel()


async def _exchanged(
    provider: OAuthProviderConfig,
    environ: Mapping[str, str],
    request: AuthorizationRequest,
    answer: str,
) -> str:
    transport = Transport(env=environ)
    try:
        payload = await OAuthClient(provider, transport).exchange_code(request, answer)
    finally:
        await transport.aclose()
    return payload.to_secret()
