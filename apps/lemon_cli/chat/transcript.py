"""The state of a conversation: events in, what to show out. Nothing here waits or prints.

A message is a turn from its sending to the end of its run, or to the moment at which another run
takes it over. A session works on one at a time; the others wait in the router's queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from lemon_cli.chat.answers import OUTCOMES
from lemon_cli.chat.diffs import diff_of
from lemon_cli.chat.markdown_blocks import MarkdownBlocks, blocks_of
from lemon_cli.chat.shown import (
    Asked,
    Began,
    Block,
    Live,
    Note,
    Piece,
    Said,
    Shown,
    Step,
    TurnEnd,
    Waits,
)
from lemon_cli.chat.spent import Spent, summary
from lemon_cli.render import APPROVAL_PREFIX, failure, one_line, printable
from lemon_core.bridges import SubmitResult
from lemon_core.events import (
    Action,
    ApprovalRequested,
    ApprovalResolved,
    Completion,
    Delta,
    EngineAction,
    EngineStarted,
    Event,
    PendingApproval,
    RunAbsorbed,
    RunCompleted,
    RunPhaseChanged,
    RunStarted,
)

Stage = Literal["sending", "queued", "offered", "working"]
# How the router names the end of a run that a newer message took the place of.
INTERRUPTED: Final = "interrupted"
# The id of the action with which a run says that another model answers than might be expected.
MODEL_NOTICE: Final = "lemon.model_notice"
_WORKING_PHASES: Final = frozenset({"starting_engine", "streaming", "finalizing"})


@dataclass(slots=True)
class Turn:
    """A message and its run."""

    run_id: str
    text: str
    images: tuple[str, ...] = ()
    stage: Stage = "sending"
    is_said: bool = False
    abort_asked: bool = False
    model: str | None = None
    blocks: MarkdownBlocks = field(default_factory=MarkdownBlocks)
    has_streamed: bool = False
    steps: dict[str, str] = field(default_factory=dict)
    thinking: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Transcript:
    """Every turn that is not over, the open questions, and what was used so far.

    `windows` holds the context windows of models as far as they are known.
    """

    turns: dict[str, Turn] = field(default_factory=dict)
    questions: dict[str, PendingApproval] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    windows: dict[str, int | None] = field(default_factory=dict)
    model: str | None = None
    model_notice: str | None = None

    # -- what is there -----------------------------------------------------------------------

    @property
    def active(self) -> Turn | None:
        """The turn that is being worked on, or about to be."""
        turns = self.turns.values()
        working = next((turn for turn in turns if turn.stage == "working"), None)
        return working or next((turn for turn in turns if turn.stage == "sending"), None)

    @property
    def waiting(self) -> tuple[Turn, ...]:
        """The messages in line."""
        return tuple(t for t in self.turns.values() if not t.is_said and t.stage != "working")

    def live(self) -> Live:
        """What is going on right now."""
        turn = self.active
        return Live(
            growing="" if turn is None else turn.blocks.rest,
            steps=() if turn is None else tuple(turn.steps.values()),
            waiting=tuple(one_line(t.text) for t in self.waiting),
            question=next(iter(self.questions.values()), None),
            question_count=len(self.questions),
            is_busy=bool(self.turns),
            is_thinking=turn is not None and bool(turn.thinking),
        )

    # -- sending -----------------------------------------------------------------------------

    def sent(self, run_id: str, text: str, images: tuple[str, ...] = ()) -> list[Shown]:
        """A message is on its way; beside others it is shown when its own answer begins."""
        is_alone = not self.turns
        turn = self.turns[run_id] = Turn(run_id, text, images, is_said=is_alone)
        return [Said(turn.text, turn.images)] if is_alone else []

    def followed(self, run_id: str) -> None:
        """A run of somebody else took a message: its answer is shown too."""
        self.turns.setdefault(run_id, Turn(run_id, "", stage="working", is_said=True))

    def taken(self, run_id: str, result: SubmitResult) -> list[Shown]:
        """How the router took it."""
        turn = self.turns.get(run_id)
        if turn is None or turn.stage != "sending":
            return []
        detail: Mapping[str, object] = result.detail or {}
        match detail.get("disposition"):
            case "steering":
                turn.stage = "offered"
            case "queued" | "merged":
                turn.stage = "queued"
            case _:
                return self._working(turn)
        return [] if turn.is_said else [Waits(one_line(turn.text))]

    def _working(self, turn: Turn) -> list[Shown]:
        """The turn is worked on: its message stands before what comes of it."""
        turn.stage = "working"
        return self._said(turn)

    def _said(self, turn: Turn, how: str | None = None) -> list[Shown]:
        if turn.is_said:
            return []
        turn.is_said = True
        return [Said(turn.text, turn.images, how, is_late=True)]

    def lost(self, run_id: str, reason: str) -> list[Shown]:
        """Nothing more will be heard of the turn."""
        turn = self.turns.pop(run_id, None)
        rest = [] if turn is None else [*self._said(turn), *self._finish_text(turn)]
        self._forget_questions(run_id)
        return [*rest, Note(reason, "error")]

    # -- events ------------------------------------------------------------------------------

    def event(self, run_id: str, event: Event) -> list[Shown]:
        """What an event of a run adds."""
        turn = self.turns.get(run_id)
        if turn is None:
            return []
        match event.payload:
            case Delta(text=text):
                return self._delta(turn, text)
            case EngineAction() as step:
                return self._action(turn, step)
            case ApprovalRequested(pending=pending):
                return self._asked(pending)
            case ApprovalResolved(approval_id=approval_id, decision=decision):
                return self._answered(approval_id, decision)
            case RunStarted() | EngineStarted():
                return self._started(turn, event.payload)
            case RunPhaseChanged(phase=phase):
                return self._phase(turn, phase)
            case RunAbsorbed() as absorbed:
                return self._absorbed(turn, absorbed)
            case RunCompleted(completed=completed, duration_ms=duration_ms):
                return self._completed(turn, completed, duration_ms)
            case _:
                pass
        return []

    def _delta(self, turn: Turn, text: str) -> list[Shown]:
        turn.has_streamed = True
        return [*self._working(turn), Piece(text), *map(Block, turn.blocks.feed(text))]

    def _finish_text(self, turn: Turn) -> list[Shown]:
        return [Block(block) for block in turn.blocks.finish()]

    def _last_text(self, turn: Turn, answer: str) -> list[Shown]:
        """What is left of the text. The answer is the model's last message alone: what stands
        before it, as after a steer, is another one, though nothing in the stream says so."""
        rest = turn.blocks.rest
        before = rest.removesuffix(answer)
        if answer and before and before != rest:
            turn.blocks.finish()
            return [*map(Block, blocks_of(before)), *map(Block, blocks_of(answer))]
        return self._finish_text(turn)

    def _started(self, turn: Turn, started: RunStarted | EngineStarted) -> list[Shown]:
        if isinstance(started, RunStarted):
            named: Mapping[str, object] = {"model": started.model, "provider": started.provider}
        else:
            named = started.meta or {}
        model, provider = named.get("model"), named.get("provider")
        if isinstance(model, str) and model:
            known = isinstance(provider, str) and not model.startswith(f"{provider}:")
            self.model = turn.model = f"{provider}:{model}" if known else model
        return self._working(turn)

    def _phase(self, turn: Turn, phase: str) -> list[Shown]:
        if phase in _WORKING_PHASES:
            return self._working(turn)
        if phase == "queued_in_session" and turn.stage == "offered":
            turn.stage = "queued"
            return [Note(f"not taken by the working run, queued: {one_line(turn.text)}")]
        return []

    def _absorbed(self, turn: Turn, absorbed: RunAbsorbed) -> list[Shown]:
        del self.turns[turn.run_id]
        self._forget_questions(turn.run_id)
        how = "with the next" if absorbed.mode == "followup" else "taken by the working run"
        return self._said(turn, how)

    def _completed(self, turn: Turn, completed: Completion, duration_ms: int | None) -> list[Shown]:
        del self.turns[turn.run_id]
        self._forget_questions(turn.run_id)
        shown = [*self._said(turn), *self._last_text(turn, completed.answer or "")]
        if not turn.has_streamed and completed.answer:
            shown += [Piece(completed.answer), *map(Block, blocks_of(completed.answer))]
        shown += (Step(title, False, "not finished") for title in turn.steps.values())
        if not completed.ok and turn.abort_asked:
            shown.append(Note("aborted", "warning"))
        elif completed.error == INTERRUPTED:
            shown.append(Note("interrupted by a newer message", "warning"))
        elif not completed.ok:
            shown.append(Note(f"failed: {failure(completed)}", "error"))
        # What was aborted while it waited has used nothing, and says so by saying nothing.
        if completed.ok or completed.usage:
            self.spent.add(completed.usage)
            window = self.windows.get(turn.model or "")
            line = summary(
                completed.usage, model=turn.model, window=window, duration_ms=duration_ms
            )
            shown.append(TurnEnd(line))
        return shown

    # -- steps -------------------------------------------------------------------------------

    def _action(self, turn: Turn, step: EngineAction) -> list[Shown]:
        action = step.action
        said = self._working(turn)
        match action.kind:
            case "approval":
                return [*said, *self._approval(turn, step)]
            case "note":
                return [*said, *self._notice(action)]
            case "reasoning":
                if step.phase == "completed":
                    turn.thinking.discard(action.id)
                else:
                    turn.thinking.add(action.id)
                return said
            case _:
                return [*said, *self._tool(turn, step)]

    def _notice(self, action: Action) -> list[Shown]:
        """A sentence for the person: whole, however long; which model answers is said once."""
        text = " ".join(printable(action.title).split())
        if action.id == MODEL_NOTICE:
            if text == self.model_notice:
                return []
            self.model_notice = text
        return [Note(text)]

    def _tool(self, turn: Turn, step: EngineAction) -> list[Shown]:
        action, title = step.action, one_line(step.action.title)
        text = self._finish_text(turn)
        if step.phase != "completed":
            is_new = action.id not in turn.steps
            turn.steps[action.id] = title
            return [*text, Began(title)] if is_new else text
        turn.steps.pop(action.id, None)
        ok = step.ok is not False
        message = step.message or (None if ok else _reason(action.detail))
        diff = diff_of(action) if ok else None
        return [*text, Step(title, ok, message and one_line(message), diff)]

    def _approval(self, turn: Turn, step: EngineAction) -> list[Shown]:
        action = step.action
        approval_id = action.id.removeprefix(APPROVAL_PREFIX)
        if step.phase == "completed":
            # The event about the question itself says more, and comes with it.
            return self._answered(approval_id, None if step.ok else "deny", step.message)
        detail = action.detail or {}
        args = detail.get("args")
        return self._asked(
            PendingApproval(
                id=approval_id,
                run_id=turn.run_id,
                tool=str(detail.get("name") or action.title),
                action=dict(args) if isinstance(args, Mapping) else None,
            )
        )

    # -- questions ---------------------------------------------------------------------------

    def _asked(self, question: PendingApproval) -> list[Shown]:
        known = self.questions.get(question.id)
        if known is None:
            self.questions[question.id] = question
            return [Asked(question)]
        if known.decisions is None and question.decisions is not None:
            self.questions[question.id] = question
            # An action holds long texts shortened; the question itself is whole.
            return [Asked(question)] if question.action != known.action else []
        return []

    def _answered(
        self, approval_id: str, decision: str | None, words: str | None = None
    ) -> list[Shown]:
        question = self.questions.pop(approval_id, None)
        if question is None:
            return []
        told = words or OUTCOMES.get(decision or "", decision)
        return [Note(f"{question.tool}: {told}")]

    def _forget_questions(self, run_id: str) -> None:
        """Questions of a run that is over are answered by nobody."""
        over = [q.id for q in self.questions.values() if q.run_id == run_id]
        for approval_id in over:
            del self.questions[approval_id]


def _reason(detail: Mapping[str, object] | None) -> str | None:
    """Why a tool failed, from its result."""
    facts = detail or {}
    meta = facts.get("result_meta")
    if isinstance(meta, Mapping) and isinstance(meta.get("message"), str):
        return str(meta["message"])
    result = facts.get("result")
    return result if isinstance(result, str) else None
