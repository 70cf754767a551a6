"""Where commands may run, and who has to agree: metadata and policy, nothing is executed here.

The policy comes from three variables, each a list of backend names. What is denied stays denied
although the allow list names it, and the allow list shuts out whatever it does not name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

ALLOW_VARIABLE: Final = "LEMON_TERMINAL_BACKENDS_ALLOW"
DENY_VARIABLE: Final = "LEMON_TERMINAL_BACKENDS_DENY"
APPROVAL_VARIABLE: Final = "LEMON_TERMINAL_BACKENDS_REQUIRE_APPROVAL"

SANDBOX_PROGRAM: Final = "bwrap"

Availability = Literal["available", "denied", "not_allowed"]

_SUMMARIES: Final[Mapping[str, str]] = {
    "local": "a command with pipes, on this machine",
    "local_pty": "a command with a terminal of its own, on this machine",
}


@dataclass(frozen=True, slots=True)
class TerminalBackend:
    """One way to run a command."""

    name: str
    summary: str
    availability: Availability
    requires_approval: bool

    @property
    def is_available(self) -> bool:
        """Whether commands may run this way."""
        return self.availability == "available"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The confinement that `sandbox = true` in a tool policy asks for; without a program there is
    none, and such commands are refused."""

    program: str | None

    @property
    def is_available(self) -> bool:
        """Whether commands can be confined on this machine."""
        return self.program is not None


@dataclass(frozen=True, slots=True)
class TerminalPolicy:
    """Which backends may be used; `allow` None means all of them."""

    allow: frozenset[str] | None = None
    deny: frozenset[str] = frozenset()
    require_approval: frozenset[str] = frozenset()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> TerminalPolicy:
        """The policy of the variables; names are parted by commas or spaces, `*` means all.

        A variable that is set to no name at all does not restrict, as an empty one is an unset one.
        """
        allow = _names(environ, ALLOW_VARIABLE)
        return cls(
            allow=allow or None,
            deny=_names(environ, DENY_VARIABLE),
            require_approval=_names(environ, APPROVAL_VARIABLE),
        )

    def availability(self, name: str) -> Availability:
        """Whether the backend `name` may be used; deny beats allow."""
        if _holds(self.deny, name):
            return "denied"
        if self.allow is not None and not _holds(self.allow, name):
            return "not_allowed"
        return "available"

    def allows(self, name: str) -> bool:
        """Whether the backend `name` may be used."""
        return self.availability(name) == "available"

    def needs_approval(self, name: str) -> bool:
        """Whether a person has to agree to each command of the backend `name`."""
        return _holds(self.require_approval, name)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names in the policy that no backend has, sorted."""
        named = {*(self.allow or ()), *self.deny, *self.require_approval}
        return tuple(sorted(named - set(_SUMMARIES) - {"*"}))


def terminal_backends(policy: TerminalPolicy) -> tuple[TerminalBackend, ...]:
    """Every backend with what `policy` says about it."""
    return tuple(
        TerminalBackend(name, summary, policy.availability(name), policy.needs_approval(name))
        for name, summary in _SUMMARIES.items()
    )


def find_sandbox(environ: Mapping[str, str]) -> Sandbox:
    """The sandbox of this machine, looked up in the `PATH` of `environ` and nowhere else."""
    return Sandbox(shutil.which(SANDBOX_PROGRAM, path=environ.get("PATH", os.defpath)))


def _names(environ: Mapping[str, str], variable: str) -> frozenset[str]:
    return frozenset(environ.get(variable, "").replace(",", " ").lower().split())


def _holds(names: frozenset[str], name: str) -> bool:
    return name in names or "*" in names
