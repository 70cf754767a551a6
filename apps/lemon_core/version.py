"""The version of this source tree; it imports nothing, so that `lemon --version` is quick."""

__version__ = "2026.11.0"
