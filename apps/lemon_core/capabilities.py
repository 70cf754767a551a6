"""One registry for the seams between apps; it hangs on the runtime and is the only one."""

from __future__ import annotations

from typing import Final, Literal

from lemon_core.errors import LemonError

# Keys whose port has no module of its own here; the others stand beside their ports.
RUN_HISTORY: Final = "run_history"
"""Finished runs of a session, newest first; core registers its `RunStore`."""
WORKSPACE_DIAGNOSTICS: Final = "workspace_diagnostics"
"""Redacted counts of the agent's stores, for the doctor's bundle."""
TEST_CREDENTIAL_ENV_VARS: Final = "test_credential_env_vars"
"""Contributed: names of variables that tests must not see."""


def doctor_runtime(name: str) -> str:
    """The key under which an app tells the doctor the redacted state of one of its areas."""
    return f"doctor_runtime:{name}"


class AlreadyConfigured(LemonError):
    """`if_unset` met another implementation; the existing one stays."""

    code = "already_configured"

    def __init__(self, key: str, existing: object) -> None:
        super().__init__(f"capability {key!r} is already provided by {type(existing).__name__}")
        self.key, self.existing = key, existing


class Capabilities:
    """Single implementations by key, and ordered contributions by key."""

    def __init__(self) -> None:
        self._single: dict[str, object] = {}
        self._many: dict[str, list[object]] = {}

    def register(
        self, key: str, impl: object, *, mode: Literal["replace", "if_unset"] = "replace"
    ) -> None:
        """Make `impl` the answer for `key`.

        With `if_unset` another existing implementation raises `AlreadyConfigured`; the same
        object is accepted silently.
        """
        existing = self._single.get(key)
        if mode == "if_unset" and existing is not None and existing is not impl:
            raise AlreadyConfigured(key, existing)
        self._single[key] = impl

    def get(self, key: str) -> object | None:
        """The implementation of `key`, or None: an absent collaborator is a normal state."""
        return self._single.get(key)

    def clear(self, key: str, impl: object | None = None) -> None:
        """Forget `key`; with `impl` only when it is still the registered one."""
        if impl is None or self._single.get(key) is impl:
            self._single.pop(key, None)

    def contribute(self, key: str, impl: object) -> None:
        """Add `impl` to the contributions of `key`; an equal one stays there once."""
        items = self._many.setdefault(key, [])
        if impl not in items:
            items.append(impl)

    def contributions(self, key: str) -> tuple[object, ...]:
        """What was contributed to `key`, in order."""
        return tuple(self._many.get(key, ()))
