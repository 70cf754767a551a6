"""How sessions, runs and questions look in a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from lemon_cli.render import failure, one_line, printable
from lemon_cli.session_name import session_word

if TYPE_CHECKING:
    from lemon_core.events import PendingApproval
    from lemon_core.router_views import RunInfo, SessionInfo, SessionView

_CELL: Final = 60
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """`rows` below `head` in columns; the last one is as wide as it likes."""
    lines = [head, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*map(str.ljust, line[:-1], widths), line[-1]]).rstrip() for line in lines
    )


def short(text: str, width: int = _CELL) -> str:
    """`text` as one line of at most `width` characters."""
    line = one_line(text)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def age(since_ms: int | None, now_ms: int) -> str:
    """How long ago, in its largest unit."""
    if since_ms is None:
        return "-"
    passed = max(0, now_ms - since_ms)
    for unit, size in _UNITS:
        if passed >= size:
            return f"{passed // size} {unit} ago"
    return "now"


def session_lines(sessions: Sequence[SessionInfo], now_ms: int) -> str:
    """One line for each session."""
    rows = [
        (
            session_word(info.session_key),
            info.agent_id,
            _work(info),
            str(info.run_count),
            age(info.updated_at_ms, now_ms),
        )
        for info in sessions
    ]
    return table(("SESSION", "AGENT", "STATE", "RUNS", "LAST USED"), rows)


def session_text(view: SessionView, now_ms: int, *, full: bool) -> str:
    """A session with its choices and its recent runs."""
    info = view.info
    facts = [
        ("session", session_word(info.session_key)),
        ("key", info.session_key),
        ("agent", info.agent_id),
        ("state", _work(info)),
        ("model", view.model or "not set"),
        ("thinking", view.thinking_level or "not set"),
        ("runs", f"{info.run_count} finished, last used {age(info.updated_at_ms, now_ms)}"),
    ]
    text = _facts(facts)
    if not view.runs:
        return text
    if full:
        return "\n\n".join([text, *(run_text(run, now_ms) for run in view.runs)])
    return f"{text}\n\n{run_lines(view.runs, now_ms)}"


def run_lines(runs: Sequence[RunInfo], now_ms: int) -> str:
    """One line for each run."""
    rows = [
        (
            run.run_id,
            session_word(run.session_key) if run.session_key else "-",
            run.state if run.absorbed_by else _state(run),
            age(run.created_at_ms, now_ms),
            short(run.prompt or ""),
        )
        for run in runs
    ]
    return table(("RUN", "SESSION", "STATE", "SENT", "PROMPT"), rows)


def run_text(run: RunInfo, now_ms: int) -> str:
    """Everything about a run; the answer comes last, as it is."""
    facts = [
        ("run", run.run_id),
        ("session", session_word(run.session_key) if run.session_key else "-"),
        ("state", _state(run)),
        ("sent", f"{age(run.created_at_ms, now_ms)}, origin {run.origin}"),
    ]
    if run.model:
        facts.append(("model", run.model))
    if run.node_id:
        facts.append(("node", run.node_id))
    if run.duration_ms is not None:
        facts.append(("took", f"{run.duration_ms / 1000:.1f} s"))
    facts.append(("prompt", short(run.prompt or "", 160)))
    done = run.completion
    if done is not None and not done.ok:
        facts.append(("failed", failure(done)))
    text = _facts(facts)
    if done is not None and done.answer:
        text += f"\n\n{printable(done.answer).rstrip()}"
    return text


def question_lines(questions: Sequence[PendingApproval], now_ms: int) -> str:
    """One line for each question that waits."""
    rows = [
        (
            question.id,
            question.tool,
            session_word(question.session_key) if question.session_key else "-",
            age(question.requested_at_ms, now_ms),
            short(asked(question)),
        )
        for question in questions
    ]
    return table(("APPROVAL", "TOOL", "SESSION", "ASKED", "WHAT"), rows)


def asked(question: PendingApproval) -> str:
    """What the tool wants to do."""
    action = question.action or {}
    for name in ("command", "path", "url"):
        if isinstance(action.get(name), str):
            return str(action[name])
    if not action:
        return question.rationale or ""
    return json.dumps(action, ensure_ascii=False, separators=(",", ":"))


def run_json(run: RunInfo) -> dict[str, object]:
    """The run as a JSON map."""
    fields = {name: value for name, value in _plain(run).items() if name != "completion"}
    done = run.completion
    return {**fields, "completion": None if done is None else done.model_dump(mode="json")}


def session_json(view: SessionView) -> dict[str, object]:
    """The session as a JSON map."""
    return {
        **asdict(view.info),
        "model": view.model,
        "thinking_level": view.thinking_level,
        "runs": [run_json(run) for run in view.runs],
    }


def _plain(run: RunInfo) -> dict[str, object]:
    return {name: getattr(run, name) for name in type(run).__dataclass_fields__}


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts)


def _work(info: SessionInfo) -> str:
    waiting = f"{info.queued_count} queued" if info.queued_count else ""
    if info.active_run_id:
        return f"running, {waiting}" if waiting else "running"
    return waiting or "idle"


def _state(run: RunInfo) -> str:
    if run.absorbed_by:
        return f"part of {run.absorbed_by}"
    # Between these two, the phase tells more.
    if run.state in ("started", "submitted") and run.phase:
        return run.phase.replace("_", " ")
    return run.state
