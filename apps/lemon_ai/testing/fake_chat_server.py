"""The fake provider for those who speak only chat completions with it.

async with FakeChatServer() as server:
    server.enqueue(Turn(text="hello"))
    ...                                  # point a client at server.base_url
"""

from __future__ import annotations

from lemon_ai.testing.fake_provider_server import FakeProviderServer


class FakeChatServer(FakeProviderServer):
    """A FakeProviderServer whose `base_url` is that of chat completions."""

    @property
    def base_url(self) -> str:
        """What a client is configured with."""
        return self.base_url_of("openai_completions")
