"""Which shared libraries a machine lacks."""

from tools.bazelw_lib.libraries import PACKAGES, missing


def test_a_library_that_does_not_load_is_missing() -> None:
    def load(library: str) -> object:
        raise OSError(f"{library}: cannot open shared object file")

    assert missing(load) == list(PACKAGES)


def test_a_library_that_loads_is_not_missing() -> None:
    assert missing(lambda library: library) == []
