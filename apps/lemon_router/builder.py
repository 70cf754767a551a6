"""From a request to a command: agent, resume, directory, model, authority, in this order.

Nothing here writes; errors leave no trace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from lemon_core import session_key as session_keys
from lemon_core.config.model import LemonConfig, Profile
from lemon_core.errors import LemonError
from lemon_core.execution_context import ExecutionContext
from lemon_core.logs import get_logger
from lemon_core.paths import PathSettings, default_cwd, node_roots
from lemon_core.resume import (
    ChatState,
    ConversationKey,
    ResumeToken,
    resume_conversation,
    session_conversation,
)
from lemon_core.runs import ExecutionCommand, Lane, RunRequest
from lemon_core.store.errors import StoreError
from lemon_core.store.wrappers import SessionSettings
from lemon_core.workspace import is_inside
from lemon_router.compaction import Marker, PendingCompactions
from lemon_router.errors import Rejected
from lemon_router.policy import (
    SYSTEM,
    AuthorityError,
    Caller,
    PolicyLayers,
    admit_followup,
    build_context,
    effective_policy,
    limits_of,
)
from lemon_router.requests import Submission

log = get_logger("lemon_router.builder")

THINKING_LEVELS: Final = frozenset({"off", "minimal", "low", "medium", "high", "xhigh"})
LANES: Final[Mapping[object, Lane]] = {
    "main": "main",
    "subagent": "subagent",
    "background_exec": "background_exec",
}


class ChatStates(Protocol):
    """What sessions may resume (core's `ChatStateStore`)."""

    async def get(self, session_key: str) -> ChatState | None:
        """The stored state; None when there is none or it has expired."""


class Settings(Protocol):
    """The sticky choices of sessions (core's `SessionSettingsStore`)."""

    async def get(self, session_key: str) -> SessionSettings:
        """The session's choices; all None when it made none."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Resolves requests against configuration and stores."""

    config: LemonConfig
    paths: PathSettings
    chat_states: ChatStates
    settings: Settings
    policies: PolicyLayers
    compactions: PendingCompactions

    async def build(
        self, request: RunRequest, run_id: str, caller: Caller, now_ms: int
    ) -> Submission:
        """The submission that `request` becomes; raises `Rejected`."""
        session_key = self._session_key(request)
        profile = self._profile(request.agent_id)
        admit_followup(request, session_key, caller, now_ms)
        self._confine_parent(request, caller)
        afresh = await self._afresh(request, session_key)
        token, source = (None, None) if afresh else await self._resume(request, session_key)
        cwd = self._cwd(request, caller)
        context = await self._context(
            request, run_id, session_key, cwd, profile=profile, caller=caller, now_ms=now_ms
        )
        meta = await self._meta(request, session_key, profile, source)
        key: ConversationKey = (
            session_conversation(session_key) if token is None else resume_conversation(token)
        )
        command = ExecutionCommand(
            run_id=run_id,
            session_key=session_key,
            prompt=_prompt(request) if afresh is None else afresh[0],
            images=request.images,
            conversation_key=key,
            execution_context=context,
            cwd=context.workspace.cwd,
            resume=token,
            lane=LANES.get(request.meta.get("lane"), "main"),
            tool_policy=context.capabilities,
            meta=meta,
        )
        return Submission(
            command,
            key,
            request.queue_mode,
            source == "explicit",
            origin=request.origin,
            consumes=None if afresh is None else afresh[1],
        )

    async def system_context(self, session_key: str, run_id: str, now_ms: int) -> ExecutionContext:
        """The authority of a session without an earlier run: principal `system`, never more than
        the session's stored layers give. Raises `Rejected`."""
        agent_id = session_keys.agent_id(session_key)
        if agent_id is None:
            raise Rejected("invalid_session_key", f"{session_key!r} is not a session key")
        request = RunRequest(origin="system", session_key=session_key, agent_id=agent_id)
        caller = Caller(id="system", principal=SYSTEM)
        return await self._context(
            request,
            run_id,
            session_key,
            self._cwd(request, caller),
            profile=self._profile(agent_id),
            caller=caller,
            now_ms=now_ms,
        )

    async def _afresh(self, request: RunRequest, session_key: str) -> tuple[str, Marker] | None:
        """The prompt of a channel's message whose conversation was cut, and the marker of that."""
        if request.origin != "channel" or request.resume is not None:
            return None
        return await self.compactions.rewritten(session_key, _prompt(request))

    def _confine_parent(self, request: RunRequest, caller: Caller) -> None:
        """A context from outside opens no directory that this node does not lend."""
        parent = request.execution_context
        if parent is None or not caller.confined:
            return
        if not parent.workspace.lies_within(
            node_roots(self.config.gateway.default_cwd, self.paths)
        ):
            raise Rejected("workspace_escape", "the context's workspace is not lent to outsiders")

    async def bound(self, submission: Submission) -> Submission:
        """A message queued during the first run of a session continues that run's conversation."""
        if submission.resume_is_explicit or submission.consumes is not None:
            return submission
        if not self.auto_resumes(submission.meta):
            return submission
        try:
            token = await self.late_resume(submission.session_key)
        except LemonError:
            return submission
        return submission if token is None else submission.resumed(token)

    async def late_resume(self, session_key: str) -> ResumeToken | None:
        """What a queued run of this session may continue from by now."""
        state = await self.chat_states.get(session_key)
        return None if state is None else state.native_resume()

    def auto_resumes(self, meta: Mapping[str, object]) -> bool:
        """True when a request without a token continues what its session did last."""
        if meta.get("disable_auto_resume"):
            return False
        return self.config.gateway.auto_resume or meta.get("auto_resume") is True

    @staticmethod
    def _session_key(request: RunRequest) -> str:
        key = request.session_key or session_keys.main(request.agent_id)
        if not session_keys.is_valid(key):
            raise Rejected("invalid_session_key", f"{key!r} is not a session key")
        return key

    def _profile(self, agent_id: str) -> Profile:
        profile = self.config.profiles.get(agent_id)
        if profile is None:
            known = ", ".join(sorted(self.config.profiles))
            raise Rejected("unknown_agent_id", f"no agent {agent_id!r}; configured: {known}")
        return profile

    async def _resume(
        self, request: RunRequest, session_key: str
    ) -> tuple[ResumeToken | None, str | None]:
        if request.resume is not None:
            if not request.resume.may_resume_top_level():
                raise Rejected(
                    "unsupported_resume_engine",
                    f"a run cannot resume a session of engine {request.resume.engine!r}",
                )
            return request.resume, "explicit"
        if not self.auto_resumes(request.meta):
            return None, None
        try:
            token = await self.late_resume(session_key)
        except LemonError as exc:
            log.warning("resume.unreadable", session_key=session_key, error=str(exc))
            return None, None
        return (token, "auto") if token is not None else (None, None)

    def _cwd(self, request: RunRequest, caller: Caller) -> str:
        meta_cwd = request.meta.get("cwd")
        asked = request.cwd or (meta_cwd if isinstance(meta_cwd, str) else None)
        if not asked or not asked.strip():
            return str(default_cwd(self.config.gateway.default_cwd, self.paths).resolve())
        try:
            directory = os.path.realpath(self.paths.expand(asked.strip()))
        except ValueError as exc:
            raise Rejected("invalid_cwd", "the working directory has a null character") from exc
        if caller.confined:
            roots = node_roots(self.config.gateway.default_cwd, self.paths)
            if not any(is_inside(directory, root) for root in roots):
                raise Rejected("workspace_escape", f"{directory} is not lent to runs from outside")
        if not os.path.isdir(directory):
            raise Rejected("invalid_cwd", f"working directory {directory} does not exist")
        return directory

    async def _context(
        self,
        request: RunRequest,
        run_id: str,
        session_key: str,
        cwd: str,
        *,
        profile: Profile,
        caller: Caller,
        now_ms: int,
    ) -> ExecutionContext:
        try:
            policy = await effective_policy(
                request, session_key, caller, self.policies, profile.tool_policy
            )
            return build_context(
                request,
                run_id=run_id,
                session_key=session_key,
                cwd=cwd,
                policy=policy,
                caller=caller,
                limits=limits_of(request, self.config.runtime.budget_defaults.max_children),
                now_ms=now_ms,
            )
        except AuthorityError as exc:
            raise Rejected(exc.code, exc.detail) from exc
        except StoreError as exc:
            # A stored layer that cannot be read must not turn into an unrestricted run.
            raise Rejected("policy_unreadable", str(exc)) from exc

    async def _meta(
        self, request: RunRequest, session_key: str, profile: Profile, source: str | None
    ) -> dict[str, object]:
        sticky = await self.settings.get(session_key)
        meta = dict(request.meta)
        model = request.model or meta.get("model") or sticky.model or profile.model
        level = meta.get("thinking_level") or sticky.thinking_level
        chosen: dict[str, object] = {
            "origin": request.origin,
            "agent_id": request.agent_id,
            "model": model or self.config.defaults.model,
            "thinking_level": level if level in THINKING_LEVELS else None,
            "resume_source": source,
            "system_prompt": meta.get("system_prompt") or profile.system_prompt,
        }
        meta.update({key: value for key, value in chosen.items() if value is not None})
        if chosen["thinking_level"] is None:
            meta.pop("thinking_level", None)
        return meta


def _prompt(request: RunRequest) -> str:
    """The text of the message; what was spoken is marked, for words may have been misheard."""
    if request.meta.get("voice_transcribed"):
        return f"[transcribed from speech] {request.prompt}"
    return request.prompt
