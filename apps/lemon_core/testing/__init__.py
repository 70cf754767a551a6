"""Fixtures for the tests of every app; no product code imports this."""

from lemon_core.testing.clock import FakeClock
from lemon_core.testing.home import scrubbed_environ, socket_dir, temp_home

__all__ = ["FakeClock", "scrubbed_environ", "socket_dir", "temp_home"]
