"""Payloads of the topics `cron` and `goals`."""

from __future__ import annotations

from lemon_core.payload import RarePayload


class CronTick(RarePayload):
    """The scheduler looked for jobs that are due."""

    timestamp_ms: int


class CronRunStarted(RarePayload):
    """A job began to run; `run` is the stored record."""

    cron_run_id: str
    job_id: str
    router_run_id: str | None = None
    job_name: str | None = None
    agent_id: str | None = None
    session_key: str | None = None
    triggered_by: str = "schedule"
    started_at_ms: int | None = None
    run: dict[str, object] | None = None


class CronRunCompleted(RarePayload):
    """A job's run is over; `suppressed` means that nobody is told."""

    cron_run_id: str
    job_id: str
    router_run_id: str | None = None
    agent_id: str | None = None
    session_key: str | None = None
    status: str | None = None
    duration_ms: int | None = None
    output: str | None = None
    error: str | None = None
    suppressed: bool = False
    run: dict[str, object] | None = None


class CronJobChanged(RarePayload):
    """A job was created, updated or deleted; `job` is None when it is gone."""

    action: str
    job_id: str
    name: str | None = None
    agent_id: str | None = None
    job: dict[str, object] | None = None


class CronLifecycleAction(RarePayload):
    """An entry of the scheduler's audit trail."""

    audit: dict[str, object]


class HeartbeatAlert(RarePayload):
    """A heartbeat run had something to say."""

    agent_id: str
    job_id: str | None = None
    job_name: str | None = None
    run_id: str | None = None
    response: str | None = None
    severity: str = "warning"


class HeartbeatSuppressed(RarePayload):
    """A heartbeat run had nothing to say."""

    agent_id: str
    job_id: str | None = None
    job_name: str | None = None
    run_id: str | None = None


class GoalChanged(RarePayload):
    """A session's goal as it is after the change that the event's type names."""

    goal_id: str
    agent_id: str | None = None
    session_key: str | None = None
    status: str | None = None
    objective_bytes: int | None = None
    continuation_count: int | None = None
    last_run_id: str | None = None
    loop_verdict: str | None = None
    loop_status: str | None = None
    loop_auto_enabled: bool | None = None
