"""Fakes for tests: a scripted model provider, and the same script without HTTP."""

from lemon_ai.testing.fake_chat_server import FakeChatServer
from lemon_ai.testing.fake_oauth import FakeOAuth
from lemon_ai.testing.fake_provider_server import FakeProviderServer, RecordedRequest
from lemon_ai.testing.script import FakeToolCall, FakeUsage, Gate, HttpError, Script, Turn
from lemon_ai.testing.scripted_adapter import ScriptedAdapter, scripted_model

__all__ = [
    "FakeChatServer",
    "FakeOAuth",
    "FakeProviderServer",
    "FakeToolCall",
    "FakeUsage",
    "Gate",
    "HttpError",
    "RecordedRequest",
    "Script",
    "ScriptedAdapter",
    "Turn",
    "scripted_model",
]
