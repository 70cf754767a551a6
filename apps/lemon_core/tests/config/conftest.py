"""Fixtures of the configuration tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.tests.config.homes import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home and a project without any file."""
    return Home(tmp_path)
