"""Which Bazel of the machine is used."""

from pathlib import Path

import pytest

from tools.bazelw_lib.host_bazel import fitting_bazel
from tools.bazelw_lib.install import install
from tools.bazelw_lib.report import BazelwError


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_the_bazel_of_the_wanted_major_version_is_used(tmp_path: Path) -> None:
    program(tmp_path / "old/bazel", "bazel 6.5.0")
    fitting = program(tmp_path / "new/bazel", "bazel 7.1.0")
    path = f"{tmp_path}/none:{tmp_path}/old:{tmp_path}/new"
    assert fitting_bazel({"PATH": path}, "7", tmp_path) == str(fitting)


def test_bazelisk_is_used_where_no_bazel_fits(tmp_path: Path) -> None:
    program(tmp_path / "bazel", "bazel 6.5.0")
    bazelisk = program(tmp_path / "bazelisk", "never asked")
    assert fitting_bazel({"PATH": str(tmp_path)}, "7", tmp_path) == str(bazelisk)


def test_bazelisk_under_the_name_bazel_is_not_asked_for_its_version(tmp_path: Path) -> None:
    bazelisk = program(tmp_path / "lib/bazelisk-linux-amd64", "downloading")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bazel").symlink_to(bazelisk)
    path = str(tmp_path / "bin")
    assert fitting_bazel({"PATH": path}, "7", tmp_path) == f"{path}/bazel"


def test_a_machine_without_a_fitting_bazel_has_none(tmp_path: Path) -> None:
    program(tmp_path / "bazel", "nonsense")
    assert fitting_bazel({"PATH": str(tmp_path)}, "7", tmp_path) is None


def test_the_chosen_bazel_goes_before_all_others(tmp_path: Path) -> None:
    chosen = program(tmp_path / "mine", "bazel 6.0.0")
    program(tmp_path / "bin/bazel", "bazel 7.7.1")
    environ = {"PATH": str(tmp_path / "bin"), "LEMON_BAZEL": str(chosen)}
    assert fitting_bazel(environ, "7", tmp_path) == str(chosen)


def test_debians_bazel_can_be_asked_for(tmp_path: Path) -> None:
    program(tmp_path / "bazel", "bazel 7.7.1")
    environ = {"PATH": str(tmp_path), "LEMON_BAZEL": "debian"}
    assert fitting_bazel(environ, "7", tmp_path) is None


def test_a_chosen_bazel_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    environ = {"PATH": "", "LEMON_BAZEL": str(tmp_path / "absent")}
    with pytest.raises(BazelwError, match="LEMON_BAZEL"):
        fitting_bazel(environ, "7", tmp_path)


def test_the_wrapper_that_install_made_is_not_taken_for_a_bazel(tmp_path: Path) -> None:
    wrapper = install({"HOME": str(tmp_path), "PATH": ""})
    assert fitting_bazel({"PATH": str(wrapper.parent)}, "7", tmp_path) is None
