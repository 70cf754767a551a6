"""What the rest of the process may ask the running agent (lemon_core's `AgentRuntime`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from coding_agent.compaction import Summarizer, compaction_facts, window_of
from coding_agent.errors import ResumeError
from coding_agent.extension_questions import ExtensionQuestions
from coding_agent.features import feature_progress
from coding_agent.services import Services
from coding_agent.session_store import SessionFile
from coding_agent.tasks import TaskRecord
from coding_agent.todos import actionable, progress
from lemon_agent import (
    AbortSignal,
    AgentMessage,
    CompactionResult,
    LoopConfig,
    Summary,
    SummaryMessage,
)
from lemon_agent.compaction import cut_point
from lemon_agent.context import estimate_size, tokens_of
from lemon_ai import AIError, StreamOptions, Usage
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger

if TYPE_CHECKING:
    from lemon_core.store.chat_state import ChatStateStore

log = get_logger(__name__)

SUMMARY_TIMEOUT_S: Final = 120.0
MAX_NODES: Final = 200


@dataclass(frozen=True, slots=True)
class _ByHand:
    """A conversation that is to be shortened at `cut`; `before` is its size in tokens."""

    session: SessionFile
    messages: Sequence[AgentMessage]
    cut: int
    before: int


class AgentProvider(ExtensionQuestions):
    """The callbacks that this app has; `tasks` is the component's and takes summaries."""

    def __init__(self, services: Services, chats: ChatStateStore, tasks: TaskGroup) -> None:
        super().__init__(services.foreign_tools, services.extension_report)
        self._services, self._chats, self._tasks = services, chats, tasks

    # -- tasks -------------------------------------------------------------------------------

    async def list_tasks(self) -> list[tuple[str, dict[str, object]]]:
        """The tasks of the last day, the oldest first."""
        return [(record.id, record.facts()) for record in await self._services.children.all()]

    async def get_task(self, task_id: str) -> tuple[dict[str, object], list[dict[str, object]]]:
        """A task with its answer, and its last steps while it lives; empty for an unknown one."""
        children = self._services.children
        record = await children.get(task_id)
        if record is None:
            return {}, []
        living = children.living(task_id)
        return {**record.facts(), "result": record.result}, list(living.actions) if living else []

    async def run_graph(self, run_id: str) -> dict[str, object]:
        """The run with its children and theirs."""
        records = await self._services.children.all()
        own = next((record for record in records if record.run_id == run_id), None)
        is_live = self._services.children.live.get(run_id) is not None
        status = own.status if own else "running" if is_live else "unknown"
        return {
            "run_id": run_id,
            "parent_run_id": own.parent_run_id if own else None,
            "status": status,
            "children": _children_of(run_id, records[-MAX_NODES:]),
        }

    # -- progress ----------------------------------------------------------------------------

    async def todo_progress(self, session_key: str) -> dict[str, int]:
        """How far the list of a session is."""
        session_id = await self._session_id(session_key)
        return await self._progress(session_id) if session_id else {"actionable_count": 0}

    async def progress_snapshot(self, session_id: str, cwd: str) -> dict[str, object]:
        """The list of a session as it is, with how far it is."""
        todos = await self._services.shared_tools.todos.load(session_id)
        listed = [todo.model_dump(mode="json") for todo in todos]
        return {
            "session_id": session_id,
            "cwd": cwd,
            "todos": listed,
            "progress": await self._progress(session_id),
            "features": await self.feature_progress(cwd),
        }

    async def feature_progress(self, cwd: str) -> dict[str, object]:
        """How far the project's own list of features is; empty where it has none."""
        return await anyio.to_thread.run_sync(feature_progress, cwd)

    async def _progress(self, session_id: str) -> dict[str, int]:
        todos = await self._services.shared_tools.todos.load(session_id)
        return {**progress(todos), "actionable_count": len(actionable(todos))}

    async def _session_id(self, session_key: str) -> str | None:
        live = self._services.children.live.of_session(session_key)
        if live is not None:
            return live.session_id
        state = await self._chats.get(session_key)
        token = None if state is None else state.native_resume()
        return None if token is None else token.value

    # -- compaction --------------------------------------------------------------------------

    async def compact_session(self, session_key: str, **options: Any) -> dict[str, object]:
        """Shorten an idle conversation now.

        With `summary` it is done on return; otherwise a model writes one and the answer is
        `started`. `keep_recent_tokens` says how much stays.
        """
        services = self._services
        if services.children.live.of_session(session_key) is not None:
            return {"error": "session_busy"}
        session_id = await self._session_id(session_key)
        if session_id is None:
            return {"error": "session_not_found"}
        try:
            session, messages = await services.sessions.find(session_id)
        except ResumeError as exc:
            return {"error": "session_not_found", "detail": str(exc)}
        keep = options.get("keep_recent_tokens")
        kept = keep if isinstance(keep, int) else services.settings.compaction.keep_recent_tokens
        cut = cut_point(messages, kept)
        before = tokens_of(estimate_size(messages))
        if cut == 0:
            return {"error": "cannot_compact", "tokens_before": before}
        plan = _ByHand(session, messages, cut, before)
        given = options.get("summary")
        if isinstance(given, str) and given.strip():
            after = await self._apply(plan, given.strip())
            if after is None:
                return {"error": "session_busy"}
            return {"status": "compacted", "tokens_before": before, "tokens_after": after}
        self._tasks.start_soon(self._summarise, plan, session_key)
        return {"status": "started", "tokens_before": before}

    async def _summarise(self, plan: _ByHand, session_key: str) -> None:
        services = self._services
        try:
            choice = await services.models.choose_model()
            config = LoopConfig(
                model=choice.model,
                stream_fn=services.models.stream,
                stream_options=StreamOptions(session_id=plan.session.id),
                get_api_key=services.models.get_api_key,
            )
            window = window_of(choice.model, services.settings.compaction)
            summarise = Summarizer(config, window, _uncounted)
            with anyio.fail_after(SUMMARY_TIMEOUT_S):
                made: Summary = await summarise(plan.messages[: plan.cut], AbortSignal())
        except (AIError, LemonError, TimeoutError) as exc:
            log.warning("compaction.by_hand_failed", error=str(exc))
            return
        except Exception:  # a background task of the component must not end it
            log.exception("compaction.by_hand_crashed")
            return
        is_free = services.children.live.of_session(session_key) is None
        if not is_free or await self._apply(plan, made.text) is None:
            log.info("compaction.stale", session_id=plan.session.id)

    async def _apply(self, plan: _ByHand, summary: str) -> int | None:
        """The size afterwards; None when the conversation has changed meanwhile."""
        if not await plan.session.is_unchanged():
            return None
        removed, kept = plan.messages[: plan.cut], plan.messages[plan.cut :]
        message = SummaryMessage.of(summary, len(kept))
        after = tokens_of(estimate_size([message, *kept]))
        result = CompactionResult(message, removed, kept, plan.before, after, forced=True)
        first = next(filter(None, map(plan.session.entry_of, kept)))
        plan.session.add("compaction", firstKeptEntryId=first, **compaction_facts(result))
        return after if await plan.session.flush() else None


def _children_of(run_id: str, records: Sequence[TaskRecord]) -> list[dict[str, object]]:
    return [
        {
            "run_id": record.run_id,
            "task_id": record.id,
            "description": record.description,
            "status": record.status,
            "children": _children_of(record.run_id, records),
        }
        for record in records
        if record.parent_run_id == run_id
    ]


def _uncounted(_: Usage) -> None:
    """By hand there is no run whose bill it could be on."""
