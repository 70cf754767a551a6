"""What can go wrong inside the gateway, and how an error looks inside a completion."""

from __future__ import annotations

from collections.abc import Mapping

from lemon_core.errors import LemonError
from lemon_core.runs import InvalidCommand
from lemon_core.util import truncate_utf8

START_ERROR_MAX_BYTES = 1_024
LOG_ERROR_MAX_BYTES = 4_096

# Ends that a person asked for: logged at warning, everything else that fails at error.
USER_ABORTS = frozenset({"user_requested", "interrupted", "new_session"})


class GatewayError(LemonError):
    """Base of everything the gateway raises on purpose."""

    code = "gateway_error"


class LockTimeout(GatewayError):
    """The wait for an engine lock ran out; the caller holds nothing."""

    code = "lock_timeout"

    def __init__(self, key: tuple[str, str], waited_ms: int) -> None:
        super().__init__(f"no lease on {key[0]} lock {key[1]} after {waited_ms} ms")
        self.key, self.waited_ms = key, waited_ms


class WorkspaceEscape(GatewayError):
    """A working directory that lies outside what the run's context allows."""

    code = "workspace_escape"

    def __init__(self, cwd: str, roots: tuple[str, ...]) -> None:
        allowed = ", ".join(roots)
        super().__init__(f"working directory {cwd} is outside the run's workspace ({allowed})")
        self.cwd, self.roots = cwd, roots


class InvalidName(GatewayError):
    """A transport or a command cannot be called what it is called; it stops the start."""

    code = "invalid_name"

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(f"{kind} {name!r} {reason}: give it another name or take it out")
        self.kind, self.name, self.reason = kind, name, reason


class UnknownTransport(GatewayError):
    """No transport of that id is there."""

    code = "unknown_transport"

    def __init__(self, transport_id: str, known: tuple[str, ...]) -> None:
        there = ", ".join(known) or "none"
        super().__init__(f"no transport {transport_id!r} is there (known: {there})")
        self.transport_id, self.known = transport_id, known


class AlreadyStarted(GatewayError):
    """A run that is registered was to be registered again."""

    code = "already_started"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} has been started already")
        self.run_id = run_id


class ContextNotForRun(InvalidCommand):
    """The command's authority does not cover it: another run, another node, or out of date."""

    code = "invalid_context"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"the execution context of run {run_id} cannot be used: {reason}")
        self.run_id, self.reason = run_id, reason


class MetaNotJson(InvalidCommand):
    """The command's meta holds something that cannot be stored or sent."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"meta of run {run_id} is not plain JSON")
        self.run_id = run_id


def error_value(
    code: str, message: str | None = None, detail: Mapping[str, object] | None = None
) -> dict[str, object]:
    """`{code, message?, detail?}`, the structured form of a completion's error."""
    value: dict[str, object] = {"code": code}
    if message:
        value["message"] = truncate_utf8(message, START_ERROR_MAX_BYTES)
    if detail:
        value["detail"] = dict(detail)
    return value


def error_code(error: object) -> str:
    """The code inside a completion's error, whatever form it has; empty when there is none."""
    if isinstance(error, Mapping):
        return str(error.get("code", ""))
    return "" if error is None else str(error)


def exception_text(exc: BaseException) -> str:
    """`Type: text` of an exception."""
    return f"{type(exc).__name__}: {exc}"
