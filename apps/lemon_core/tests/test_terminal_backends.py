"""Where commands may run (specification lemon_core 15, behaviour 40)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.terminal_backends import (
    Sandbox,
    TerminalBackend,
    TerminalPolicy,
    find_sandbox,
    terminal_backends,
)

ALLOW, DENY = "LEMON_TERMINAL_BACKENDS_ALLOW", "LEMON_TERMINAL_BACKENDS_DENY"
APPROVAL = "LEMON_TERMINAL_BACKENDS_REQUIRE_APPROVAL"


def states(environ: dict[str, str]) -> dict[str, str]:
    policy = TerminalPolicy.from_environ(environ)
    return {backend.name: backend.availability for backend in terminal_backends(policy)}


def test_without_variables_everything_is_available() -> None:
    assert terminal_backends(TerminalPolicy.from_environ({})) == (
        TerminalBackend("local", "a command with pipes, on this machine", "available", False),
        TerminalBackend(
            "local_pty", "a command with a terminal of its own, on this machine", "available", False
        ),
    )


@pytest.mark.behaviour("lemon_core.40")
@pytest.mark.parametrize(
    ("environ", "local", "local_pty"),
    [
        ({ALLOW: "local"}, "available", "not_allowed"),
        ({DENY: "local"}, "denied", "available"),
        ({ALLOW: "local, local_pty", DENY: "local"}, "denied", "available"),
        ({ALLOW: "local", DENY: "*"}, "denied", "denied"),
        ({ALLOW: "*", DENY: "LOCAL_PTY"}, "available", "denied"),
        ({ALLOW: "docker"}, "not_allowed", "not_allowed"),
        ({ALLOW: " , "}, "available", "available"),
    ],
)
def test_deny_beats_allow(environ: dict[str, str], local: str, local_pty: str) -> None:
    assert states(environ) == {"local": local, "local_pty": local_pty}


def test_approval_is_asked_for_what_is_named() -> None:
    policy = TerminalPolicy.from_environ({APPROVAL: "local_pty"})
    assert [b.requires_approval for b in terminal_backends(policy)] == [False, True]


def test_names_that_no_backend_has_are_told() -> None:
    policy = TerminalPolicy.from_environ({ALLOW: "local ssh *", DENY: "docker"})
    assert policy.unknown == ("docker", "ssh")


@pytest.mark.behaviour("lemon_core.40")
def test_a_missing_sandbox_is_unavailable(tmp_path: Path) -> None:
    missing = find_sandbox({"PATH": str(tmp_path)})
    assert (missing, missing.is_available) == (Sandbox(None), False)


def test_a_sandbox_that_is_there_is_named_with_its_path(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = find_sandbox({"PATH": str(tmp_path)})
    assert (found, found.is_available) == (Sandbox(str(program)), True)
