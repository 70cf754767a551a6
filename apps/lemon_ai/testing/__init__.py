"""Fakes for tests: a scripted chat-completions server, and the same script without HTTP."""

from lemon_ai.testing.fake_chat_server import FakeChatServer, RecordedRequest
from lemon_ai.testing.script import FakeToolCall, Gate, HttpError, Script, Turn
from lemon_ai.testing.scripted_adapter import ScriptedAdapter, scripted_model

__all__ = [
    "FakeChatServer",
    "FakeToolCall",
    "Gate",
    "HttpError",
    "RecordedRequest",
    "Script",
    "ScriptedAdapter",
    "Turn",
    "scripted_model",
]
