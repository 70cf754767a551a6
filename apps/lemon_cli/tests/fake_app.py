"""A component with a scripted router: what `lemon run` meets in the process.

The script comes in the environment variable `FAKE_SCRIPT`: a JSON list of `[event type, payload]`,
or `{"refuse": reason}`, or `{"hang": true}` for a run that only an abort ends.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from lemon_core.bridges import ROUTER, SubmitResult
from lemon_core.bus import Bus, run_topic
from lemon_core.events import Completion, RunCompleted
from lemon_core.runs import RunRequest
from lemon_core.runtime import Runtime


class FakeRouter:
    """Plays the script on the bus as soon as a run is submitted."""

    def __init__(self, bus: Bus, script: object) -> None:
        self._bus, self._script = bus, script
        self.requests: list[RunRequest] = []
        self.aborted: list[tuple[str, str]] = []

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        self.requests.append(request)
        assert request.run_id is not None
        if isinstance(self._script, list):
            for event_type, payload in self._script:
                self._bus.publish_event(
                    run_topic(request.run_id), event_type, self._payload(payload, request)
                )
        elif isinstance(self._script, dict) and "refuse" in self._script:
            detail = {"message": f"refused because of {self._script['refuse']}"}
            return SubmitResult("rejected", request.run_id, self._script["refuse"], detail=detail)
        return SubmitResult("accepted", request.run_id)

    @staticmethod
    def _payload(payload: object, request: RunRequest) -> object:
        text = json.dumps(payload)
        for name in ("run_id", "prompt", "session_key", "cwd", "model"):
            value = json.dumps(str(getattr(request, name)))[1:-1]
            text = text.replace(f"${name}", value)
        return json.loads(text)

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> None:
        self.aborted.append((run_id, reason))
        ended = RunCompleted(completed=Completion(ok=False, error=reason))
        self._bus.publish_event(run_topic(run_id), "run_completed", ended)

    async def abort_session(self, session_key: str, reason: str = "user_requested") -> None:
        raise AssertionError("lemon run aborts its own run only")

    async def keep_run_alive(self, run_id: str, decision: Literal["continue", "cancel"]) -> None:
        raise AssertionError("lemon run asks nothing of the kind")

    async def session_busy(self, session_key: str) -> bool:
        return False

    async def active_run(self, session_key: str) -> str | None:
        return None

    async def list_active_sessions(self) -> list[dict[str, str]]:
        return []

    async def counts(self) -> dict[str, int]:
        return {}

    async def admission(self, run_id: str) -> str | None:
        return None


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    script = json.loads(runtime.environ.get("FAKE_SCRIPT", "[]"))
    runtime.capabilities.register(ROUTER, FakeRouter(runtime.bus, script))
    yield
