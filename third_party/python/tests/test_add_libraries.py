"""A library that a wheel expects of the system is put beside the module that needs it."""

from pathlib import Path

from third_party.python.add_libraries import add


def test_only_what_is_needed_and_offered_is_added(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "libgomp.so.1").write_text("gomp")
    (libraries / "libother.so.2").write_text("other")
    (libraries / "bazelrc").write_text("")
    engine = tmp_path / "sites/engine/site/engine"
    engine.mkdir(parents=True)
    (engine / "core.so").touch()
    (engine / "plain.so").touch()
    needs = {"core.so": {"libgomp.so.1", "libc.so.6"}, "plain.so": {"libc.so.6"}}
    used: list[str] = []

    added = add(
        tmp_path / "sites",
        libraries,
        lambda module: needs[module.name],
        lambda module: used.append(module.name),
    )

    assert added == [engine / "libgomp.so.1"]
    assert (engine / "libgomp.so.1").read_text() == "gomp"
    assert used == ["core.so"]
