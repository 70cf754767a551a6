"""Providers that Lemon may sign in at, as rows of data.

A row needs a client id that was given to Lemon, or a provider that asks for none. Borrowed ids of
other programs have no place here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon_ai.oauth import OAuthProviderConfig

OAUTH_PROVIDERS: Final[Mapping[str, OAuthProviderConfig]] = {
    row.id: row
    for row in (
        # Signing in makes a key of the user's account, which does not end by itself.
        OAuthProviderConfig(
            id="openrouter",
            authorize_url="https://openrouter.ai/auth",
            token_url="https://openrouter.ai/api/v1/auth/keys",
            redirect_parameter="callback_url",
            body="json",
            token_field="key",
            returns_state=False,
            gives_keys=True,
        ),
    )
}
