"""`ask_parent` and `parent_question`: a task that cannot go on asks the run that gave it."""

from __future__ import annotations

from functools import partial
from typing import Final

from coding_agent.questions import DEFAULT_WAIT_MS, QuestionRefused, Questions
from coding_agent.tools.toolset import ToolDef, ToolEnv, bool_param, int_param, schema, text_param
from lemon_agent import AgentToolResult, ToolCallContext, ToolError

ASK_PARENT: Final = "ask_parent"


def question_tools(questions: Questions) -> tuple[ToolDef, ...]:
    """Both definitions."""
    options = {"type": "array", "items": {"type": "string"}, "description": "Answers to choose of."}
    return (
        ToolDef(
            name="parent_question",
            description="See and answer what your tasks ask.",
            parameters=schema(
                ("action",),
                action={"type": "string", "enum": ["list", "answer"]},
                request_id=text_param("For answer."),
                answer=text_param("For answer."),
            ),
            execute=partial(_parent_question, questions),
        ),
        ToolDef(
            name=ASK_PARENT,
            description="Ask whoever gave you this task, only when you cannot go on.",
            parameters=schema(
                ("question", "why_blocked"),
                question=text_param("The question."),
                why_blocked=text_param("What you cannot decide, and why."),
                options=options,
                recommended_option=text_param("What you would choose."),
                can_continue_without_answer=bool_param("Needs fallback."),
                fallback=text_param("What you do without an answer."),
                timeout_ms=int_param("How long to wait; 300000.", minimum=1_000),
            ),
            execute=partial(_ask_parent, questions),
        ),
    )


async def _ask_parent(questions: Questions, env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    params = call.params
    fallback = str(params.get("fallback") or "").strip() or None
    if params.get("can_continue_without_answer") and fallback is None:
        raise ToolError("can_continue_without_answer needs a fallback")
    can_continue = bool(params.get("can_continue_without_answer"))
    try:
        asked = await questions.ask(
            env.identity.run_id,
            str(params["question"]),
            str(params["why_blocked"]),
            options=[str(option) for option in params.get("options") or ()],
            recommended=params.get("recommended_option"),
            fallback=fallback if can_continue else None,
            timeout_ms=min(params.get("timeout_ms") or DEFAULT_WAIT_MS, DEFAULT_WAIT_MS),
        )
    except QuestionRefused as exc:
        raise ToolError(str(exc)) from exc
    details = {"status": asked.status}
    if asked.status == "answered":
        return AgentToolResult.of_text(asked.answer or "", details=details)
    if asked.fallback is None:
        raise ToolError("nobody answered in time, and there is no fallback: say what is missing")
    text = f"Nobody answered in time. Go on with your fallback: {asked.fallback}"
    return AgentToolResult.of_text(text, details=details)


async def _parent_question(
    questions: Questions, env: ToolEnv, call: ToolCallContext
) -> AgentToolResult:
    key = env.identity.session_key
    if call.params["action"] == "list":
        found = questions.open_of(key)
        text = "\n\n".join(asked.text for asked in found) or "No question is open."
        return AgentToolResult.of_text(text)
    request_id, answer = call.params.get("request_id"), call.params.get("answer")
    if not request_id or not answer:
        raise ToolError("answer needs request_id and answer")
    try:
        questions.answer(key, str(request_id), str(answer))
    except QuestionRefused as exc:
        raise ToolError(str(exc)) from exc
    return AgentToolResult.of_text("Answered.")
