"""The one retry of a run whose model failed before it said anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from lemon_core.errors import error_text, is_context_overflow
from lemon_core.events import Completion
from lemon_router.requests import Submission

SUFFIX: Final = "-retry1"
ATTEMPT: Final = "zero_answer_retry_attempt"
RETRY_OF: Final = "zero_answer_retry_of_run"
FINAL_ERRORS: Final = frozenset({"user_requested", "interrupted", "new_session", "timeout"})
_MARKS: Final = ("assistant_error", "assistant error")
# Of lemon_ai's: a refused key, and a request that the provider will not take a second time either.
_LASTING: Final = frozenset({"auth", "client"})


def retry_of(submission: Submission, end: Completion) -> Submission | None:
    """The submission that tries a failed run once more; None when it is not to be tried again.

    Its id follows from the first one's, so that a restart cannot try twice.
    """
    command = submission.command
    context = command.execution_context
    if not _is_worth_it(submission, end) or context is None:
        return None
    run_id = f"{submission.run_id}{SUFFIX}"
    reason = error_text(end.error)
    prompt = (
        f"The run {submission.run_id} failed before it answered ({reason}). Parts of the work may "
        f"be done already: look for them first, then go on.\n\n{command.prompt}"
    )
    meta = {
        **command.meta,
        ATTEMPT: 1,
        RETRY_OF: submission.run_id,
        "zero_answer_retry_reason": reason,
    }
    lineage = context.lineage
    root = run_id if lineage.root_run_id == lineage.run_id else lineage.root_run_id
    derived = context.model_copy(
        update={"lineage": lineage.model_copy(update={"run_id": run_id, "root_run_id": root})}
    )
    update = {
        "run_id": run_id,
        "prompt": prompt,
        "meta": meta,
        "execution_context": derived,
    }
    return replace(submission, command=command.model_copy(update=update))


def _is_worth_it(submission: Submission, end: Completion) -> bool:
    error = error_text(end.error)
    words = error.casefold()
    code = end.error.get("code") if isinstance(end.error, Mapping) else end.error
    return (
        not end.ok
        and not (end.answer or "").strip()
        and bool(submission.command.prompt.strip())
        and any(mark in words for mark in _MARKS)
        and not is_context_overflow(end.error)
        and code not in FINAL_ERRORS
        and _category(end.error) not in _LASTING
        and ATTEMPT not in submission.meta
    )


def _category(error: object) -> object:
    detail = error.get("detail") if isinstance(error, Mapping) else None
    return detail.get("category") if isinstance(detail, Mapping) else None
