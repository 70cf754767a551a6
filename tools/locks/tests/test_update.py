"""How the locks are made; the resolver itself needs the network and is not run here."""

import sys
from pathlib import Path

import pytest

from tools.locks.update import checked, compile_command, pip_environment

GOOD = "# a header\nanyio==4.0 ; python_version < '4' \\\n    --hash=sha256:ab\n"


def test_a_lock_with_hashes_and_without_hosts_is_taken() -> None:
    assert checked(GOOD) == GOOD


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD + "--index-url https://index.example/simple\n", "names a host"),
        (GOOD + "rich==1.0\n", "2 pinned packages, 1 with hashes"),
        ("", "0 pinned packages"),
    ],
)
def test_a_lock_that_is_unsafe_to_check_in_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        checked(text)


def test_locks_serve_every_supported_python_and_name_no_index() -> None:
    command = compile_command(Path("/uv"), Path("in"), Path("out"), ["--upgrade"])
    assert command[:3] == ["/uv", "pip", "compile"]
    assert {"--universal", "--generate-hashes", "--no-emit-index-url", "--upgrade"} <= set(command)
    assert command[command.index("--python-version") + 1] == "3.11"


def test_a_python_without_pip_gets_the_one_that_was_unpacked() -> None:
    environ = {"PYTHONPATH": "/of/bazel", "LEMON_PIP_PATH": "/unpacked"}
    # The interpreter of the tests has no pip.
    assert pip_environment(sys.executable, environ)["PYTHONPATH"] == "/unpacked"


def test_the_callers_python_path_is_not_passed_on() -> None:
    assert "PYTHONPATH" not in pip_environment(sys.executable, {"PYTHONPATH": "/of/bazel"})
