"""The controls of automation: scheduled jobs, goal loops and kanban boards.

lemon_automation registers all three. Who uses one takes it with its function here and tells its own
caller that it is not available when there is none. Records are plain maps in automation's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

from lemon_core.capabilities import Capabilities
from lemon_core.errors import LemonError

CRON_MANAGER: Final = "cron_manager"
GOAL_AUTOMATION: Final = "goal_automation"
KANBAN_AUTOMATION: Final = "kanban_automation"

Record = Mapping[str, object]


class AutomationRefused(LemonError):
    """A control that did nothing; `reason` is automation's word for it, such as `not_found`."""

    code = "automation_refused"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class CronManager(Protocol):
    """Scheduled jobs and their runs; every call may raise `AutomationRefused`."""

    async def list(self) -> Sequence[Record]:
        """All jobs, newest first."""

    async def add(self, params: Record) -> Record:
        """A new job (`missing_keys`, `invalid_target`, `invalid_schedule`, `invalid_timezone`)."""

    async def update(self, job_id: str, patch: Record) -> Record:
        """The changed job (`not_found`, `immutable_fields`, `invalid_target`,
        `invalid_schedule`)."""

    async def remove(self, job_id: str) -> None:
        """Drop a job and abort its run (`not_found`)."""

    async def run_now(self, job_id: str) -> Record:
        """The run that was started (`not_found`)."""

    async def abort_run(self, run_id: str) -> Record:
        """The run that was ended (`not_found`, `not_active`)."""

    async def refresh_captured_model(self, job_id: str) -> Record:
        """The job with the default model of now (`not_found`)."""

    async def runs(
        self,
        job_id: str,
        limit: int = 100,
        status: str | None = None,
        since_ms: int | None = None,
    ) -> Sequence[Record]:
        """A job's runs, newest first."""

    async def status(self) -> Record:
        """`enabled, job_count, active_jobs, next_run_at_ms` and counts."""

    async def audit(
        self,
        job_id: str | None = None,
        run_id: str | None = None,
        action: str | None = None,
        since_ms: int | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """What was done to jobs and runs, newest first."""

    async def tick(self) -> None:
        """One cycle of the scheduler."""


class GoalAutomation(Protocol):
    """Loops that continue a session's goal; every call may raise `AutomationRefused`."""

    async def continue_once(self, session_key: str, **options: object) -> Record:
        """`{run_id, goal}` of one continuation (`not_found`, `paused`, `completed`,
        `budget_exhausted`)."""

    async def run_once(self, session_key: str, **options: object) -> Record:
        """Judge once and act on the verdict."""

    async def start_loop(
        self, session_key: str, *, auto: bool = False, **options: object
    ) -> Record:
        """The session's loop; with `auto` a running one is returned (else `already_running`)."""

    async def stop_loop(self, session_key: str) -> Record:
        """End the loop and the run in flight."""

    async def status(self, session_key: str | None = None) -> Record:
        """One loop, or all."""


class KanbanAutomation(Protocol):
    """Dispatchers that work off a board; every call may raise `AutomationRefused`."""

    async def start_board(
        self,
        board_id: str,
        *,
        interval_ms: int = 1_000,
        max_concurrency: int = 1,
        lease_ms: int = 300_000,
        worker_id: str = "kanban-dispatcher",
        worker_profile: str | None = None,
    ) -> Record:
        """The dispatcher (`board_not_found`, `already_running`)."""

    async def stop_board(self, board_id: str) -> Record:
        """Cancel the workers, abort their runs and give their tasks back (`not_running`)."""

    async def status(self, board_id: str | None = None) -> Record:
        """One dispatcher, or all."""


def cron_manager(capabilities: Capabilities) -> CronManager | None:
    """The scheduler; None when it is not available."""
    return cast("CronManager | None", capabilities.get(CRON_MANAGER))


def goal_automation(capabilities: Capabilities) -> GoalAutomation | None:
    """The goal loops; None when they are not available."""
    return cast("GoalAutomation | None", capabilities.get(GOAL_AUTOMATION))


def kanban_automation(capabilities: Capabilities) -> KanbanAutomation | None:
    """The kanban dispatchers; None when they are not available."""
    return cast("KanbanAutomation | None", capabilities.get(KANBAN_AUTOMATION))
