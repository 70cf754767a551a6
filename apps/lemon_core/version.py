"""The version of this source tree; it imports nothing, so that `lemon --version` is quick."""

__version__ = "0.1.0"
