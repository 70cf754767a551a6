"""What every run of a gateway works with, and how a run can end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.events import Completion, ErrorValue
from lemon_core.journal import Journal
from lemon_core.paths import PathSettings
from lemon_core.resume import ResumeToken
from lemon_core.store import KEEP
from lemon_core.store.chat_state import ChatStateChange
from lemon_core.telemetry import Telemetry
from lemon_gateway.config import GatewaySettings
from lemon_gateway.engine_lock import EngineLock
from lemon_gateway.errors import error_value
from lemon_gateway.executor import ConfiguredExecutor
from lemon_gateway.requests import ExecutionRequest

OnComplete = Callable[[ExecutionRequest, Completion], None]
"""A local listener; it is told last and its failure is logged only."""


class RunRecords(Protocol):
    """What a run needs of core's `RunStore`."""

    async def begin(self, run_id: str, digest: bytes, *, session_key: str = "") -> bool:
        """Commit the begin mark; False when there was one. Raises `StoreError`."""

    def append_event(self, run_id: str, event: object, *, size_bytes: int = 256) -> None:
        """Keep an event in memory."""

    async def finalize(
        self, run_id: str, summary: Mapping[str, object], chat_state: ChatStateChange = KEEP
    ) -> bool:
        """Commit the end; False when there was one. Raises `StoreError`."""


class Progress(Protocol):
    """What a run needs of core's `ProgressStore`."""

    def put(self, scope: str, message_id: str | int, run_id: str) -> None:
        """Tie a progress message to its run."""

    def delete(self, scope: str, message_id: str | int) -> None:
        """Forget it."""


@dataclass(frozen=True, slots=True)
class RunParts:
    """The collaborators of every run of one gateway."""

    executor: ConfiguredExecutor
    lock: EngineLock
    records: RunRecords
    progress: Progress
    journal: Journal
    bus: Bus
    telemetry: Telemetry
    clock: Clock
    paths: PathSettings
    settings: GatewaySettings
    release_slot: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run came to its end.

    `aborted`: somebody wished it. `stop_executor`: the executor may still be at work.
    """

    ok: bool
    error: ErrorValue = None
    answer: str | None = None
    resume: ResumeToken | None = None
    usage: dict[str, object] | None = None
    meta: dict[str, object] | None = None
    aborted: bool = False
    stop_executor: bool = False


def failure(code: str, message: str) -> Ending:
    """An ending that the gateway itself made, before the executor was at work."""
    return Ending(False, error_value(code, message))
