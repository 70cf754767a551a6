"""The runs of a router that have not ended, found by id and by session."""

from __future__ import annotations

from dataclasses import replace

from lemon_router.claims import Claims
from lemon_router.hooks import Process, Work
from lemon_router.requests import Submission


class Works:
    """Waiting, offered and active runs; the active ones hold their session and token."""

    def __init__(self) -> None:
        self.claims = Claims()
        self._works: dict[str, Work] = {}
        self._of_sessions: dict[str, dict[str, None]] = {}
        self._active: dict[str, Submission] = {}

    def __len__(self) -> int:
        return len(self._works)

    def __getitem__(self, run_id: str) -> Work:
        return self._works[run_id]

    def find(self, run_id: str) -> Work | None:
        """A run that has not ended yet."""
        return self._works.get(run_id)

    def active(self) -> list[Submission]:
        """The submissions of all active runs."""
        return list(self._active.values())

    @property
    def active_count(self) -> int:
        """How many runs are active."""
        return len(self._active)

    def started(self, submission: Submission, process: Process) -> None:
        """The run is active from now on."""
        self.claims.take(submission)
        self._active[submission.run_id] = submission
        self._works[submission.run_id] = replace(self[submission.run_id], process=process)

    def of_session(self, session_key: str) -> list[Work]:
        """The session's runs, the oldest first."""
        return [self._works[run_id] for run_id in self._of_sessions.get(session_key, ())]

    def add(self, work: Work) -> None:
        """Keep a run."""
        self._works[work.submission.run_id] = work
        self._of_sessions.setdefault(work.submission.session_key, {})[work.submission.run_id] = None

    def renew(self, submission: Submission) -> Work:
        """The queue may have changed a submission: joined others to it, or written receipts."""
        work = replace(self._works[submission.run_id], submission=submission)
        self._works[submission.run_id] = work
        return work

    def remove(self, run_id: str) -> Work:
        """Let go of a run that is over, with all that it holds."""
        work = self._works.pop(run_id)
        session = self._of_sessions[work.submission.session_key]
        del session[run_id]
        if not session:
            del self._of_sessions[work.submission.session_key]
        self._active.pop(run_id, None)
        self.claims.release(run_id)
        return work
