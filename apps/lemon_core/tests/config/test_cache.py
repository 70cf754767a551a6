"""Configurations that are read again only when a file changed (specification lemon_core 10.2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.config.cache import CHECK_INTERVAL_MS, ConfigCache, config_files
from lemon_core.config.load import ConfigError, LoadedConfig, load_config
from lemon_core.testing import FakeClock
from lemon_core.tests.config.homes import Home

pytestmark = pytest.mark.anyio


class Reads:
    """A cache over the files of a home, and how often it read them."""

    def __init__(self, home: Home) -> None:
        self.home, self.clock, self.count = home, FakeClock(), 0
        self.cache = ConfigCache(
            self.clock, load=self._load, files=lambda cwd: config_files(cwd, home.paths)
        )

    def model(self, cwd: Path | None = None) -> str | None:
        return self.cache.get(cwd).config.defaults.model

    def _load(self, cwd: Path | None) -> LoadedConfig:
        self.count += 1
        return load_config(cwd, paths=self.home.paths, environ={})


@pytest.fixture
def reads(home: Home) -> Reads:
    home.write("[defaults]\nmodel = 'a'\n")
    return Reads(home)


async def test_the_files_are_looked_at_once_a_second_and_read_when_changed(reads: Reads) -> None:
    assert [reads.model(), reads.model()] == ["a", "a"]
    reads.home.write("[defaults]\nmodel = 'another'\n")
    await reads.clock.advance(CHECK_INTERVAL_MS - 1)
    assert reads.model() == "a"
    await reads.clock.advance(1)
    assert reads.model() == "another"
    await reads.clock.advance(CHECK_INTERVAL_MS)
    assert reads.model() == "another"
    assert reads.count == 2


async def test_each_project_has_its_own_under_whatever_name(reads: Reads, tmp_path: Path) -> None:
    reads.home.write_project("[defaults]\nmodel = 'project'\n")
    link = tmp_path / "link"
    link.symlink_to(reads.home.project)
    assert [reads.model(), reads.model(reads.home.project), reads.model(link)] == [
        "a",
        "project",
        "project",
    ]
    assert reads.count == 2
    reads.home.project_file.unlink()
    await reads.clock.advance(CHECK_INTERVAL_MS)
    assert reads.model(link) == "a"


async def test_trust_that_is_given_counts(reads: Reads) -> None:
    reads.model(reads.home.project)
    reads.home.paths.trusted_projects.write_text("{}")
    await reads.clock.advance(CHECK_INTERVAL_MS)
    reads.model(reads.home.project)
    assert reads.count == 2


async def test_it_can_be_told_to_read_again(reads: Reads) -> None:
    reads.model()
    reads.cache.reload()
    reads.cache.forget()
    reads.model()
    assert reads.count == 3


async def test_a_load_that_fails_is_not_remembered(reads: Reads) -> None:
    reads.model()
    reads.home.write("engine = 'x'\n")
    await reads.clock.advance(CHECK_INTERVAL_MS)
    for _ in range(2):
        with pytest.raises(ConfigError):
            reads.model()
    assert reads.count == 3
