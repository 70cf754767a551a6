"""Which active run holds which session and which resume token: pure state.

At most one active run per session and per token, whatever conversations they came by.
"""

from __future__ import annotations

from lemon_core.resume import ResumeToken
from lemon_router.requests import Submission


class Claims:
    """The sessions and tokens of the active runs."""

    def __init__(self) -> None:
        self._sessions: dict[str, str] = {}
        self._tokens: dict[ResumeToken, str] = {}
        self._held: dict[str, tuple[str, set[ResumeToken]]] = {}

    def free(self, submission: Submission) -> bool:
        """True when nobody holds what `submission` needs."""
        token = submission.command.resume
        return submission.session_key not in self._sessions and token not in self._tokens

    def take(self, submission: Submission) -> None:
        """Hold the session and the token of a run that starts."""
        run_id, token = submission.run_id, submission.command.resume
        self._sessions[submission.session_key] = run_id
        self._held[run_id] = (submission.session_key, set())
        if token is not None:
            self.take_token(run_id, token)

    def take_token(self, run_id: str, token: ResumeToken) -> bool:
        """Hold `token` too, for an active run; False while another run holds it."""
        owner = self._tokens.setdefault(token, run_id)
        if owner != run_id:
            return False
        self._held[run_id][1].add(token)
        return True

    def release(self, run_id: str) -> None:
        """Give back everything of a run; harmless for one that holds nothing."""
        session_key, tokens = self._held.pop(run_id, ("", set()))
        # Only what still names this run: a later one may hold the session by now.
        if self._sessions.get(session_key) == run_id:
            del self._sessions[session_key]
        for token in tokens:
            self._tokens.pop(token, None)

    def active_run(self, session_key: str) -> str | None:
        """The active run of the session."""
        return self._sessions.get(session_key)

    def token_of(self, submission: Submission) -> ResumeToken | None:
        """The token that a run goes on from: named, or bound when it started."""
        held = self._held.get(submission.run_id)
        bound = next(iter(held[1]), None) if held is not None else None
        return bound or submission.command.resume

    @staticmethod
    def compete(one: Submission, other: Submission) -> bool:
        """True when both need the same session or the same token."""
        token = one.command.resume
        same_token = token is not None and token == other.command.resume
        return same_token or one.session_key == other.session_key
