"""The calls that a policy wants a person to look at: they ask, and run only when approved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from coding_agent.tools.toolset import Question
from lemon_agent import AgentTool, AgentToolResult, ToolCallContext
from lemon_core.approvals import ApprovalRequest, ApprovalTimeout, Approved, Denied, GrantRule
from lemon_core.logs import get_logger

log = get_logger(__name__)

_REFUSALS: Final[Mapping[str, str]] = {
    "approval_denied": "The user denied this call. It was not run.",
    "approval_timeout": "This call needs an approval, and nobody gave it in time. It was not run.",
    "approval_error": "This call needs an approval, and asking for it failed. It was not run.",
}
# What cannot be read cannot be compared with what was granted, nor granted for another time.
_ASK_ALWAYS: Final = GrantRule(frozenset(), False, frozenset({"approve_once", "deny"}))
_NOBODY: Final = "This call needs an approval, and nobody can be asked in this run. It was not run."


class Approvals(Protocol):
    """What the agent needs of core's `ExecApprovals`."""

    async def request(self, request: ApprovalRequest) -> Approved | Denied: ...
    async def granted(self, request: ApprovalRequest) -> Approved | None: ...


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks. Without `can_ask` there is nobody to answer: only a stored grant lets a call pass,
    and every other one is refused at once instead of waiting for ever."""

    approvals: Approvals
    run_id: str
    session_id: str
    session_key: str
    agent_id: str
    can_ask: bool

    def gated(
        self, tool: AgentTool, question: Callable[[Mapping[str, object]], Question] = Question
    ) -> AgentTool:
        """`tool`, whose body runs only after an approval of what `question` makes of the call."""

        async def execute(call: ToolCallContext) -> AgentToolResult:
            refusal = await self._refusal(tool.name, question(call.params))
            return await tool.execute(call) if refusal is None else refusal

        return tool.executing(execute)

    async def _refusal(self, tool: str, asked: Question) -> AgentToolResult | None:
        """Why the call may not run; None when it was approved."""
        request = ApprovalRequest(
            run_id=self.run_id,
            session_id=self.session_id,
            session_key=self.session_key,
            agent_id=self.agent_id,
            tool=tool,
            action=asked.action,
            rationale=f"the tool policy wants calls of {tool} approved",
            grants=GrantRule() if asked.is_grantable else _ASK_ALWAYS,
        )
        try:
            if not self.can_ask:
                granted = await self.approvals.granted(request)
                return _refused("approval_error", _NOBODY) if granted is None else None
            answer = await self.approvals.request(request)
        except ApprovalTimeout:
            return _refused("approval_timeout")
        except Exception:  # whatever is wrong with the service: nothing was approved
            log.exception("approval.failed", run_id=self.run_id, tool=tool)
            return _refused("approval_error")
        return None if isinstance(answer, Approved) else _refused("approval_denied")


def _refused(reason: str, text: str | None = None) -> AgentToolResult:
    return AgentToolResult.of_text(
        text or _REFUSALS[reason], details={"reason": reason}, is_error=True
    )
