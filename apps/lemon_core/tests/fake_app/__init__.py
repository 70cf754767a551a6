"""An app for the tests of profiles and boot; its components write down what happens to them."""

from lemon_core.tests.fake_app import cli

__all__ = ["cli"]
