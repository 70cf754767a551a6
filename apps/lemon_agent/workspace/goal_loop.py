"""The data of a goal's loop, as it lies in the goal's `meta` under `goalLoop`.

Keys are camelCase there: other programs read them through the control plane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lemon_agent.workspace.records import InvalidInput

META_KEY: Final = "goalLoop"
LOOP_ACTIONS: Final = ("continue", "done", "blocked", "needs_input")
LOOP_STATUSES: Final = ("running", "stopped", "finished", "limit_reached", "error")
FAILURE_POLICIES: Final = ("pause", "continue_once", "needs_input")
_COUNTS: Final = ("maxTicks", "maxContinuations", "waitTimeoutMs")
_NAMES: Final = ("judgeModel", "model")


@dataclass(frozen=True, slots=True)
class LoopState:
    """A view on the loop's data; every change gives a new one."""

    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> LoopState:
        """The loop's data of a goal; anything that is no map reads as none."""
        data = meta.get(META_KEY)
        return cls(data if isinstance(data, Mapping) else {})

    def into(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """A goal's `meta` with this state."""
        return {**meta, META_KEY: dict(self.data)}

    @property
    def status(self) -> str | None:
        """The last status."""
        return self.data.get("status")

    @property
    def last_action(self) -> str | None:
        """What the judge said last."""
        verdict = self.data.get("lastVerdict")
        return verdict.get("action") if isinstance(verdict, Mapping) else None

    @property
    def is_automatic(self) -> bool:
        """Whether the loop starts by itself."""
        auto = self.data.get("auto")
        return isinstance(auto, Mapping) and auto.get("enabled") is True

    def judged(
        self, action: str, *, reason: str, source: str, run_id: str | None, at_ms: int
    ) -> LoopState:
        """With one more verdict."""
        verdict = {
            "action": action,
            "reason": reason,
            "source": source,
            "atMs": at_ms,
            "runId": run_id,
        }
        count = self.data.get("verdictCount")
        return self._with(
            at_ms, lastVerdict=verdict, verdictCount=(count if isinstance(count, int) else 0) + 1
        )

    def moved(self, status: str, *, run_id: str | None, error: str | None, at_ms: int) -> LoopState:
        """In another status; raises `InvalidInput` for one that does not exist."""
        if status not in LOOP_STATUSES:
            known = ", ".join(LOOP_STATUSES)
            raise InvalidInput("invalid_loop_status", f"{status!r} is none of {known}")
        times = (
            {"startedAtMs": at_ms, "stoppedAtMs": None}
            if status == "running"
            else {"stoppedAtMs": at_ms}
        )
        return self._with(at_ms, status=status, lastRunId=run_id, lastError=error, **times)

    def automatic(self, auto: Mapping[str, Any], *, at_ms: int) -> LoopState:
        """With other settings for starting by itself."""
        return self._with(at_ms, auto=dict(auto))

    def _with(self, at_ms: int, **changes: Any) -> LoopState:
        return LoopState({**self.data, **changes, "updatedAtMs": at_ms})


def valid_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options of an automatic loop that mean something; the others are left out."""
    found: dict[str, object] = {}
    for name in _COUNTS:
        if _is_count(value := options.get(name), least=1):
            found[name] = value
    if _is_count(value := options.get("intervalMs"), least=0):
        found["intervalMs"] = value
    for name in _NAMES:
        value = options.get(name)
        if isinstance(value, str) and value.strip():
            found[name] = value.strip()
    if (policy := options.get("judgeFailurePolicy")) in FAILURE_POLICIES:
        found["judgeFailurePolicy"] = policy
    return found


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
