"""Everything lies in the user's cache folder."""

from pathlib import Path

import pytest

from tools.bazelw_lib.paths import Cache, cache_home


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/lemon"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/var/ada"}, "/var/ada/lemon"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": ""}, "/home/ada/.cache/lemon"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "relative"}, "/home/ada/.cache/lemon"),
    ],
)
def test_the_cache_folder_follows_the_xdg_rules(environ: dict[str, str], expected: str) -> None:
    assert cache_home(environ) == Path(expected)


def test_each_major_version_has_its_own_bundle() -> None:
    cache = Cache(Path("/cache"))
    assert cache.bundle("7").home != cache.bundle("8").home
